"""What a program can read, how it reads it, and how that can change between two calls: the material of fuzz_guards.py.

In the text of a change: m is the model, i the inputs of the next call, r a random.Random. `same` marks changes that must
not compile again: nothing that the program reads is another one now (values inside tensors may well be).
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Change:
    kind: str
    code: str
    same: bool = False


@dataclass(frozen=True)
class ProcessChange:
    """A change of the whole process, undone at the end of the sequence."""

    kind: str
    code: str
    undo: str
    same: bool = False


@dataclass
class Feature:
    name: str
    use: str
    top: str = ""
    init: str = ""
    changes: list[Change] = field(default_factory=list)


FEATURES: list[Feature] = []


def feature(name: str, use: str, *, top: str = "", init: str = "", same: list[str] | None = None, **kinds: str) -> None:
    """kinds: kind of change -> its code, or several with `;;` between."""
    changes = [Change(k, code.strip()) for k, text in kinds.items() for code in text.split(";;")]
    changes += [Change("same", code, same=True) for code in same or []]
    FEATURES.append(Feature(name, use, top, init, changes))


# --- globals and builtins ---

feature(
    "global number", "x = x * SCALE", top="SCALE = 2.0",
    global_rebound="SCALE = r.choice([1.0, 3.0, -0.0, 0.0, True, 1, 2, 2.0, float('nan'), 10**20])",
    global_to_tensor="SCALE = torch.tensor(r.choice([1.5, 2.5])) ;; SCALE = torch.ones(4) * 2",
    global_deleted="del SCALE",
    same=["SCALE = SCALE", "SCALE = float(repr(SCALE)) if type(SCALE) is float else SCALE", "UNREAD = r.random()"],
)
feature(
    "sign of zero", "x = x * math.copysign(2.0, ZERO) if ZERO == 0 else x + ZERO", top="ZERO = 0.0",
    number_sign="ZERO = r.choice([0.0, -0.0, 0, False, 1.0])", same=["ZERO = ZERO"],
)
feature(
    "flag", "x = x * 2 if FLAG is True else (x * 3 if FLAG else x)", top="FLAG = True",
    global_flag="FLAG = r.choice([True, False, 1, 0, None, '', 'a', 1.0])", same=["FLAG = FLAG"],
)
feature(
    "global tensor", "x = x + BIAS", top="BIAS = torch.arange(4.0)",
    global_tensor_rebound="BIAS = torch.randn(4) ;; BIAS = torch.randn(1)",
    global_tensor_dtype="BIAS = BIAS.double() ;; BIAS = BIAS.half() ;; BIAS = BIAS.int()",
    tensor_data_set="BIAS.data = torch.full((4,), r.random()) ;; BIAS.data = torch.ones(1) ;; BIAS.data = torch.ones(8)[::2]",
    tensor_requires_grad="BIAS.requires_grad_(r.random() < 0.5)",
    tensor_resized="BIAS.resize_(1)",
    tensor_set_="BIAS.set_(torch.randn(4))",
    tensor_transposed_in_place="BIAS.resize_(1, 4).t_()",
    same=["BIAS.detach().add_(1)", "BIAS.detach().fill_(r.random())", "BIAS = BIAS"],
)
feature(
    "global list", "for v in ITEMS:\n    x = x + v", top="ITEMS = [1.0, 2.0]",
    list_append="ITEMS.append(r.random())", list_pop="ITEMS.pop()", list_item="ITEMS[0] = r.choice([5.0, 1, True, torch.ones(4)])",
    list_reverse="ITEMS.reverse()", list_clear="ITEMS.clear()", list_insert="ITEMS.insert(0, 7)",
    list_rebound="ITEMS = [3.0] ;; ITEMS = (1.0, 2.0)", list_slice="ITEMS[:] = [4.0, 5.0]",
    same=["ITEMS = list(ITEMS) if type(ITEMS) is list else ITEMS", "ITEMS[:] = ITEMS[:]", "ITEMS.append(0); ITEMS.pop()"],
)
feature(
    "list length", "x = x * len(ITEMS2) + (1 if ITEMS2 else 2)", top="ITEMS2 = [1, 2]",
    list_length="ITEMS2.append(1) ;; ITEMS2.pop() ;; ITEMS2 = [] ;; ITEMS2 = {1} ;; ITEMS2 = 'abc' ;; ITEMS2 = range(3)",
    same=["ITEMS2 = ITEMS2"],
)
feature(
    "list index", "x = x * ITEMS3[-1] + ITEMS3[0]", top="ITEMS3 = [1.0, 2.0, 3.0]",
    list_negative_index="ITEMS3.append(r.random()) ;; ITEMS3.pop() ;; ITEMS3[-1] = 9.0 ;; ITEMS3.insert(1, 0.0) ;; ITEMS3 = (2.0,)",
    same=["ITEMS3[0] = ITEMS3[0]"],
)
feature(
    "list contains", "x = x + 1 if NAME in NAMES else x - 1\nx = x * (NAMES.index('a') + 1 if 'a' in NAMES else 5) + NAMES.count('b')",
    top="NAMES = ['a', 'b']\nNAME = 'a'",
    list_contents="NAMES.append('b') ;; NAMES.reverse() ;; NAMES.remove('a') ;; NAMES.sort() ;; NAMES.insert(0, 'c')",
    key_rebound="NAME = r.choice('abc')", same=["NAME = NAME"],
)
feature(
    "global dict", "for q, v in TABLE.items():\n    x = x * v + len(q)", top="TABLE = {'a': 1.0, 'bb': 2.0}",
    dict_set="TABLE['a'] = r.random()", dict_add="TABLE['c' * r.randint(1, 5)] = 3.0", dict_delete="del TABLE['a']",
    dict_order="TABLE['a'] = TABLE.pop('a')", dict_update="TABLE.update(a=4.0, d=1.0)", dict_clear="TABLE.clear()",
    dict_rebound="TABLE = {'z': 9.0} ;; TABLE = collections.OrderedDict(TABLE)",
    same=["TABLE.update(TABLE)", "TABLE = TABLE"],
)
feature(
    "dict get", "x = x + CONF.get('k', 5.0) * (2 if 'q' in CONF else 1)", top="CONF = {'k': 1.0}",
    dict_get="CONF['k'] = r.random() ;; CONF.pop('k', None) ;; CONF['q'] = 1 ;; CONF.clear() ;; CONF = {}",
    same=["CONF['unread'] = r.random()", "CONF.pop('unread', 0)", "CONF['k'] = CONF['k']", "CONF = CONF"],
)
feature(
    "dict views", "x = x + sum(TAB2.values()) + (1 if 'a' in TAB2.keys() else 0) + len(TAB2.items())", top="TAB2 = {'a': 1.0, 'b': 2.0}",
    dict_views="TAB2['a'] = 5.0 ;; TAB2['z'] = 1.0 ;; TAB2.popitem() ;; TAB2 = dict(reversed(TAB2.items()))", same=["TAB2 = TAB2"],
)
feature(
    "ordered dict", "for q, v in ORDERED.items():\n    x = x * v + len(q)\nx = x + next(iter(ORDERED.values()), 0.0)",
    top="ORDERED = collections.OrderedDict(a=1.0, bb=2.0, ccc=3.0)",
    ordered_dict_moved="ORDERED.move_to_end('a') ;; ORDERED.move_to_end('bb', last=False)",
    ordered_dict_changed="ORDERED['a'] = 7.0 ;; ORDERED.popitem() ;; ORDERED['d'] = 1.0", same=["ORDERED = ORDERED"],
)
feature(
    "default dict", "x = x + DEFAULTS['q']", top="DEFAULTS = collections.defaultdict(float)",
    default_factory="DEFAULTS.default_factory = r.choice([int, lambda: 3.0, None])",
    defaultdict_item="DEFAULTS['q'] = r.random() ;; DEFAULTS.pop('q', 0) ;; DEFAULTS.clear()", same=["DEFAULTS['w']"],
)
feature(
    "set", "x = x + 1 if 3 in GROUP else x - 1\nx = x * (1 + len(GROUP & {1, 2}))", top="GROUP = {1, 3}",
    set_add="GROUP.add(2) ;; GROUP.add(3) ;; GROUP |= {1, 2, 3}", set_discard="GROUP.discard(3) ;; GROUP.discard(1) ;; GROUP.clear()",
    set_rebound="GROUP = frozenset({3}) ;; GROUP = {1} ;; GROUP = [3, 2] and {3, 2}", same=["GROUP = GROUP"],
)
feature(
    "deque", "x = x + sum(QUEUE) + len(QUEUE)", top="QUEUE = collections.deque([1.0, 2.0])",
    deque="QUEUE.append(3.0) ;; QUEUE.rotate(1) ;; QUEUE.popleft() ;; QUEUE[0] = 9.0 ;; QUEUE.clear()",
)
feature(
    "constants", "x = getattr(torch, OP)(x).to(DT)[SL].reshape(SHAPE + (4,)) * COMPLEX.real + len(BYTES)",
    top="OP = 'relu'\nDT = torch.float64\nSL = slice(0, 2)\nSHAPE = (-1,)\nCOMPLEX = 2 + 1j\nBYTES = b'ab'",
    global_string="OP = r.choice(['tanh', 'relu', 'sin', 'nothing'])", global_dtype="DT = r.choice([torch.float32, torch.float64])",
    global_slice="SL = r.choice([slice(None), slice(1, 3), slice(0, 2, None)])", global_tuple="SHAPE = r.choice([(-1,), (1, -1)])",
    global_complex="COMPLEX = r.choice([3 + 1j, 2 + 1j, 1j, 0j])", global_bytes="BYTES = r.choice([b'', b'abc'])",
    same=["OP = ''.join(list(OP))", "SL = slice(SL.start, SL.stop, SL.step)", "SHAPE = tuple(list(SHAPE))", "BYTES = bytes(list(BYTES))"],
)
feature(
    "builtin shadowed", "x = x * len([1, 2]) + abs(-3) + max(1, 2)", top="",
    builtin_shadowed="len = lambda v: 7 ;; abs = math.sqrt if r.random() < 0.1 else (lambda v: 4) ;; max = min ;; len = None",
    builtin_unshadowed="del len ;; del abs", same=["UNREAD2 = r.random()"],
)
feature(
    "module global", "x = x * PACK.K + math.pi", top="PACK = types.SimpleNamespace(K=2.0)",
    namespace_set="PACK.K = r.random()", namespace_deleted="del PACK.K", namespace_rebound="PACK = types.SimpleNamespace(K=3.0)",
    module_in_place="PACK = types.ModuleType('pack'); PACK.K = 4.0", global_module_shadowed="math = types.SimpleNamespace(pi=3.0, copysign=math.copysign)",
    same=["PACK.OTHER = r.random()", "PACK.K = PACK.K"],
)

# --- functions ---

feature(
    "helper", "x = helper(x)", top="def helper(x, k=2.0, *, j=1.0):\n    return x * k + j\ndef helper2(x, k=3.0, *, j=1.0):\n    return x - k * j",
    function_rebound="helper = lambda x: x - 1 ;; helper = helper2",
    code_swapped="helper.__code__ = (lambda x, k=0.0, *, j=0.0: x - k).__code__ ;; helper.__code__ = helper2.__code__",
    defaults="helper.__defaults__ = (r.random(),) ;; helper.__defaults__ = None ;; helper.__defaults__ = (torch.ones(4),)",
    kwdefaults="helper.__kwdefaults__ = {'j': r.random()} ;; helper.__kwdefaults__['j'] = 9.0 ;; helper.__kwdefaults__ = None",
    same=["helper = helper", "helper.note = 1", "helper.__defaults__ = helper.__defaults__ and tuple(list(helper.__defaults__))",
          "helper.__doc__ = 'text'", "helper.__kwdefaults__ = helper.__kwdefaults__ and dict(helper.__kwdefaults__)"],
)
feature(
    "function attribute", "x = x * marked.k + (1 if hasattr(marked, 'extra') else 0)", top="def marked():\n    pass\nmarked.k = 2.0",
    function_attribute="marked.k = r.random() ;; marked.extra = 1 ;; marked.__dict__.pop('extra', 0) ;; del marked.k",
    same=["marked.unread = r.random()", "marked.k = marked.k"],
)
feature(
    "closure", "x = inner(x)",
    top="def outer(v):\n    def inner(x):\n        return x * v\n    def put(n):\n        nonlocal v\n        v = n\n    return inner, put\ninner, put = outer(2.0)",
    cell_rebound="put(r.random()) ;; put(torch.ones(4) * 2) ;; put(2) ;; put(2.0)",
    cell_contents_set="inner.__closure__[0].cell_contents = r.random()", cell_emptied="del inner.__closure__[0].cell_contents",
    closure_rebuilt="inner, put = outer(r.random())",
    same=["put(inner.__closure__[0].cell_contents)"],
)
feature(
    "closure over list", "x = grown(x)", top="def grow():\n    seen = [1.0]\n    def grown(x):\n        return x + sum(seen)\n    return grown, seen\ngrown, SEEN = grow()",
    cell_list="SEEN.append(2.0) ;; SEEN.clear() ;; SEEN[:] = [r.random()]",
)
feature(
    "partial", "x = PART(x)", top="def scaled(x, k=1.0, j=0.0):\n    return x * k + j\nPART = functools.partial(scaled, k=2.0)",
    partial_rebound="PART = functools.partial(scaled, k=r.random()) ;; PART = functools.partial(PART, j=1.0)",
    partial_keywords="PART.keywords['k'] = r.random() ;; PART.keywords['j'] = 3.0 ;; PART.keywords.pop('j', 0)",
    partial_state="PART.__setstate__((scaled, (), {'k': 4.0}, None)) ;; PART.__setstate__((torch.tanh, (), {}, None))",
    same=["PART = functools.partial(PART.func, *PART.args, **PART.keywords)"],
)
feature(
    "lru cache", "x = x * cached(2)", top="BASE = 1.5\n@functools.lru_cache\ndef cached(k):\n    return k * BASE",
    cached_inputs="BASE = r.random()", cache_cleared="cached.cache_clear() ;; BASE = 2.5; cached.cache_clear()",
    cached_function="cached = functools.lru_cache(lambda k: 9.0)",
)
feature(
    "generator", "for v in produce():\n    x = x + v", top="FACTOR = 2.0\ndef produce():\n    yield FACTOR\n    yield 1.0",
    generator_global="FACTOR = r.random()", generator_code="produce.__code__ = (lambda: (yield FACTOR)).__code__", generator_function="produce = lambda: [1.0]",
    same=["FACTOR = FACTOR"],
)
feature(
    "dispatch on type", "x = x * chosen(CASE)",
    top="@functools.singledispatch\ndef chosen(v):\n    return 1.0\n@chosen.register\ndef _(v: int):\n    return 2.0\nCASE = 1",
    singledispatch_argument="CASE = r.choice([1, 1.0, 'a', [], True])", singledispatch_register="chosen.register(r.choice([str, float, list, int]))(lambda v: 5.0)",
)

# --- classes and objects ---

CLASS = """
class Base:
    K = 1.0
    def grow(self, x):
        return x + self.K
class Other:
    K = 4.0
    def grow(self, x):
        return x - self.K
class Cfg(Base):
    pass
class Cfg2(Base):
    K = 6.0
cfg = Cfg()
"""
feature(
    "class attribute", "x = cfg.grow(x) * cfg.K", top=CLASS,
    class_attribute="Cfg.K = r.random() ;; Base.K = r.random() ;; del Cfg.K", instance_shadows="cfg.K = r.random() ;; del cfg.K ;; cfg.grow = lambda x: x * 5",
    method_replaced="Base.grow = lambda self, x: x * 7 ;; Cfg.grow = Other.grow", bases_changed="Cfg.__bases__ = (Other,) ;; Cfg.__bases__ = (Base,)",
    class_assigned="cfg.__class__ = Cfg2 ;; cfg.__class__ = Cfg", dict_replaced="cfg.__dict__ = {'K': r.random()} ;; cfg.__dict__ = {}",
    object_rebound="cfg = Cfg2() ;; cfg = Cfg()",
    getattribute_added="Cfg.__getattribute__ = lambda self, n: 3.0 if n == 'K' else object.__getattribute__(self, n) ;; del Cfg.__getattribute__",
    method_code="Base.grow.__code__ = Other.grow.__code__",
    same=["Cfg.UNREAD = r.random()", "Base.UNREAD = r.random()", "cfg.unread = r.random()", "cfg = cfg", "cfg.__dict__ = cfg.__dict__", "Other.K = r.random() if Cfg.__bases__ == (Base,) and type(cfg) is Cfg and Cfg.__dict__.get('grow') is None else Other.K"],
)
feature(
    "property", "x = x * prop.k", top="class Prop:\n    @property\n    def k(self):\n        return self._k * Prop.F\n    F = 1.0\nprop = Prop()\nprop._k = 2.0",
    property_replaced="Prop.k = property(lambda s: 7.0) ;; Prop.k = 3.0 ;; del Prop.k", property_data="prop._k = r.random() ;; Prop.F = r.random()",
    property_shadow="prop.__dict__['k'] = 9.0", same=["prop._k = prop._k", "prop.other = r.random()"],
)
feature(
    "getattr", "x = x * dyn.k + dyn.missing", top="class Dyn:\n    def __getattr__(self, n):\n        return 2.0 if n == 'missing' else len(n)\ndyn = Dyn()",
    getattr_replaced="Dyn.__getattr__ = lambda self, n: 5.0 ;; del Dyn.__getattr__", attribute_appears="dyn.k = r.random() ;; Dyn.k = 8.0 ;; dyn.missing = 1.0",
    attribute_disappears="dyn.__dict__.clear() ;; del Dyn.k", same=["dyn.unread = r.random()", "Dyn.unread = r.random()"],
)
feature(
    "slots", "x = x * slotted.k", top="class Slotted:\n    __slots__ = ('k', 'u')\nclass Slotted2:\n    __slots__ = ('k', 'u')\nslotted = Slotted()\nslotted.k = 2.0",
    slot_set="slotted.k = r.random() ;; slotted.k = torch.ones(4)", slot_deleted="del slotted.k", slot_class="slotted.__class__ = Slotted2",
    slot_descriptor="Slotted.k = 4.0", slot_object="slotted = Slotted(); slotted.k = r.random()", same=["slotted.k = slotted.k", "slotted.u = r.random()"],
)
feature(
    "call", "x = caller(x)", top="class Caller:\n    k = 2.0\n    def __call__(self, x):\n        return x * self.k\ncaller = Caller()",
    call_replaced="Caller.__call__ = lambda self, x: x - 1", call_object="caller = torch.tanh ;; caller = Caller() ;; caller = lambda x: x + 3",
    call_data="caller.k = r.random() ;; Caller.k = r.random()", same=["caller.__call__ = None", "caller.__dict__.pop('__call__', 0)"],
)
feature(
    "special methods", "with vec as inside:\n    x = x * len(vec) + vec[1] + (vec + 2)\nx = x * 2 if vec else x\nx = x + (1 if vec == 3 else 2) + (3 if 5 in vec else 4)\nfor v in vec:\n    x = x + v\nx = x * float(vec) + hash(vec) % 7",
    top="""
class Vec:
    n = 2
    def __len__(self): return self.n
    def __getitem__(self, i): return i * 0.5
    def __add__(self, o): return o + 1
    def __bool__(self): return True
    def __eq__(self, o): return o == 3
    def __hash__(self): return 5
    def __contains__(self, o): return False
    def __iter__(self): return iter([1.0])
    def __enter__(self): return self
    def __exit__(self, *a): return None
    def __float__(self): return 1.25
vec = Vec()
""",
    dunder_len="Vec.__len__ = lambda s: 3 ;; Vec.n = 5", dunder_getitem="Vec.__getitem__ = lambda s, i: 9.0", dunder_add="Vec.__add__ = lambda s, o: 7.0 ;; del Vec.__add__; Vec.__radd__ = lambda s, o: 1",
    dunder_bool="Vec.__bool__ = lambda s: False ;; del Vec.__bool__", dunder_eq="Vec.__eq__ = lambda s, o: False", dunder_contains="Vec.__contains__ = lambda s, o: True ;; del Vec.__contains__",
    dunder_iter="Vec.__iter__ = lambda s: iter([2.0, 3.0])", dunder_enter="Vec.__exit__ = lambda s, *a: True ;; Vec.__enter__ = lambda s: 1/0", dunder_float="Vec.__float__ = lambda s: 3.5", dunder_hash="Vec.__hash__ = lambda s: 11",
    same=["vec.unread = 1", "Vec.unread = r.random()"],
)
feature(
    "static and class methods", "x = Kit.s(x) + Kit.c() + kit.s(x) * kit.c()", top="class Kit:\n    K = 2.0\n    @staticmethod\n    def s(x):\n        return x * 2\n    @classmethod\n    def c(cls):\n        return cls.K\nclass Kit2(Kit):\n    K = 3.0\nkit = Kit()",
    staticmethod_replaced="Kit.s = staticmethod(lambda x: x + 1)", classmethod_replaced="Kit.c = classmethod(lambda c: 7.0)", classmethod_data="Kit.K = r.random() ;; kit.__class__ = Kit2 ;; Kit = Kit2",
    same=["Kit.UNREAD = r.random()"],
)
feature(
    "metaclass", "x = x * Made.K + Made.meta_k", top="class Meta(type):\n    meta_k = 1.0\n    @property\n    def K(cls):\n        return cls.base * 2\nclass Made(metaclass=Meta):\n    base = 1.0",
    metaclass_property="Meta.K = property(lambda c: 5.0) ;; Made.base = r.random()", metaclass_attribute="Meta.meta_k = r.random() ;; Made.meta_k = r.random()",
    same=["Made.UNREAD = r.random()", "Meta.UNREAD = r.random()"],
)
feature(
    "descriptor", "x = x * described.d", top="class Desc:\n    f = 2.0\n    def __get__(self, o, t):\n        return o.v * self.f\nclass Described:\n    d = Desc()\ndescribed = Described()\ndescribed.v = 1.5",
    descriptor_get="Desc.__get__ = lambda s, o, t: 4.0", descriptor_becomes_data="Desc.__set__ = lambda s, o, v: None ;; described.__dict__['d'] = 6.0",
    descriptor_data="described.v = r.random() ;; Described.__dict__['d'].f = r.random() ;; Described.d = 3.0", same=["described.unread = 1.0"],
)
feature(
    "isinstance", "x = x * (2 if isinstance(OBJ, Abst) else 3) + (1 if isinstance(OBJ, (int, Plain)) else 0) + (5 if issubclass(type(OBJ), Abst) else 6)",
    top="class Abst(abc.ABC):\n    pass\nclass Plain:\n    pass\nclass Plain2(Plain):\n    pass\nOBJ = Plain()",
    isinstance_object="OBJ = Plain2() ;; OBJ = 1 ;; OBJ = True ;; OBJ = 'a'", abc_registered="Abst.register(Plain) ;; Abst.register(str)", isinstance_class="OBJ.__class__ = Plain2",
    instancecheck="abc.ABC and setattr(Abst, '__subclasshook__', classmethod(lambda c, s: True)); Abst.register(type('Q', (), {}))",
    isinstance_global="Plain = str ;; Abst = int", same=["OBJ = OBJ"],
)
feature(
    "hasattr", "x = x * 2 if hasattr(thing, 'extra') else x + getattr(thing, ATTR, 1.0)", top="class Thing:\n    pass\nthing = Thing()\nATTR = 'q'",
    hasattr_set="thing.extra = 1 ;; thing.__dict__.pop('extra', 0) ;; Thing.extra = 2 ;; del Thing.extra", getattr_name="ATTR = r.choice(['q', 'w'])", getattr_value="thing.q = r.random() ;; thing.w = 4.0",
    same=["thing.unread = 1"],
)
feature(
    "vars", "for q, v in vars(bag).items():\n    x = x + v * len(q)\nx = x + len(bag.__dict__)", top="class Bag:\n    pass\nbag = Bag()\nbag.a = 1.0",
    vars_changed="bag.b = r.random() ;; bag.a = r.random() ;; bag.__dict__ = {'zz': 2.0} ;; bag.__dict__.clear() ;; bag.__dict__['a'] = bag.__dict__.pop('a')", same=["bag.__dict__.update(bag.__dict__)", "Bag.a = 4.0"],
)
feature(
    "dir", "x = x + len([n for n in dir(shelf) if not n.startswith('_')])", top="class Shelf:\n    pass\nshelf = Shelf()",
    dir_changed="shelf.a = 1 ;; Shelf.b = 1 ;; shelf.__dict__.clear() ;; Shelf.__dir__ = lambda s: ['a', 'b', 'c', 'd', 'e', 'f']",
)
# What was once pointed to is kept: an address used again would be chance, and another in each copy of the program.
feature(
    "identity", "x = x * 2 if id(OBJ_A) == id_a else x + 1\nx = x + ids.get(id(OBJ_B), 3.0)\nx = x * 3 if OBJ_A is OBJ_B else x", top="OBJ_A = object()\nOBJ_B = [1]\nKEPT1 = [OBJ_A, OBJ_B]\nid_a = id(OBJ_A)\nids = {id(OBJ_B): 2.0}",
    id_object="OBJ_A = object(); KEPT1.append(OBJ_A) ;; OBJ_A = OBJ_B ;; OBJ_B = [1]; KEPT1.append(OBJ_B) ;; OBJ_B = OBJ_A", id_number="id_a = id(OBJ_A) ;; ids[id(OBJ_B)] = r.random() ;; ids.clear()", same=["OBJ_A = OBJ_A"],
)
feature(
    "hash", "x = x * (1 + hash(KEYED) % 5) + BYKEY.get(KEYED, 0.5)", top="@dataclasses.dataclass(frozen=True)\nclass Key:\n    a: int\nKEYED = Key(1)\nBYKEY = {Key(1): 2.0, Key(2): 3.0}",
    hashed_object="KEYED = Key(2) ;; KEYED = Key(1) ;; KEYED = 'a' ;; object.__setattr__(KEYED, 'a', 2)", hash_replaced="Key.__hash__ = lambda s: 3", keyed_value="BYKEY[KEYED] = r.random() ;; BYKEY.clear()",
)
feature(
    "hash of object", "x = x * (2 if hash(HOBJ) == hnum else 3)", top="class Hob:\n    pass\nHOBJ = Hob()\nKEPT2 = [HOBJ]\nhnum = hash(HOBJ)",
    hash_identity="HOBJ = Hob(); KEPT2.append(HOBJ) ;; hnum = hash(HOBJ)", same=["HOBJ = HOBJ", "HOBJ.unread = 1"],
)
feature(
    "enum", "x = x * (2 if MODE is Mode.A else 3) + MODE.value + len(Mode)", top="class Mode(enum.Enum):\n    A = 1\n    B = 2\nclass Mode2(enum.Enum):\n    A = 5\nMODE = Mode.A",
    enum_member="MODE = Mode.B ;; MODE = Mode.A ;; MODE = Mode2.A", enum_class="Mode = Mode2", enum_value="Mode.A._value_ = r.choice([1, 8])", same=["MODE = MODE"],
)
feature(
    "dataclass", "x = x * data.k + sum(getattr(data, f.name) for f in dataclasses.fields(data)) + (1 if data == DATA2 else 0)",
    top="@dataclasses.dataclass\nclass Data:\n    k: float = 1.0\n    j: float = 2.0\ndata = Data()\nDATA2 = Data()",
    dataclass_field="data.k = r.random() ;; data.j = 2.0 ;; DATA2.k = data.k", dataclass_replaced="data = dataclasses.replace(data, j=r.random()) ;; DATA2 = Data(5.0)",
    same=["data.unread = 1.0"],
)
feature(
    "named tuple", "x = x * point.a + point[1] + len(point._fields)", top="Point = collections.namedtuple('Point', 'a b')\nPoint3 = collections.namedtuple('Point3', 'b a c')\npoint = Point(1.0, 2.0)",
    namedtuple="point = Point(r.random(), 2.0) ;; point = Point3(1.0, 2.0, 3.0) ;; point = point._replace(b=7.0) ;; Point.a = 6.0", same=["point = type(point)(*point)"],
)
feature(
    "match", "match MATCHED:\n    case {'k': v}:\n        x = x * v\n    case [a, *_]:\n        x = x + a\n    case Pt(a=1):\n        x = x - 1\n    case _:\n        x = x * 7",
    top="class Pt:\n    def __init__(self, a):\n        self.a = a\nMATCHED = {'k': 2.0}",
    match_subject="MATCHED = {'k': r.random()} ;; MATCHED = [3.0] ;; MATCHED = (1, 2) ;; MATCHED = Pt(1) ;; MATCHED = Pt(2) ;; MATCHED = 'abc' ;; MATCHED = {}", match_inside="MATCHED.a = r.choice([1, 2]) ;; MATCHED['k'] = 5.0",
    same=["MATCHED = MATCHED"],
)
feature(
    "exceptions", "try:\n    x = x * RISKY['k']\nexcept KeyError:\n    x = x + 1\ntry:\n    x = x + RISKY2.q\nexcept Caught:\n    x = x - 1", top="RISKY = {}\nRISKY2 = types.SimpleNamespace()\nCaught = AttributeError",
    raises_no_more="RISKY['k'] = r.random() ;; RISKY2.q = 2.0", raises_again="RISKY.clear() ;; RISKY2.__dict__.clear()", handler_class="Caught = r.choice([AttributeError, Exception, (AttributeError, KeyError)])",
    same=["RISKY['u'] = 1"],
)
feature(
    "format", "x = x * len(f'{SHOWN} {SHOWN!r:>5} {NUM:.2f}') + float('%.1f' % NUM) + len(str(SHOWN2))", top="class Shown:\n    def __str__(self):\n        return 'ab'\n    def __format__(self, s):\n        return 'abc'\n    def __repr__(self):\n        return 'abcdefghi'\nSHOWN = Shown()\nSHOWN2 = Shown()\nNUM = 1.25",
    format_number="NUM = r.choice([1.25, 22.5, 333.5])", format_methods="Shown.__format__ = lambda s, f: 'abcdef' ;; Shown.__repr__ = lambda s: 'x' * 20 ;; Shown.__str__ = lambda s: 'y' * 9", format_object="SHOWN = 'abcd' ;; SHOWN2 = 12345", same=["SHOWN.unread = 1"],
)
feature(
    "sorting", "for v in sorted(PAIRS, key=sort_key):\n    x = x * 1.5 + v[1]\nx = x + max(PAIRS, key=sort_key)[1] + min(RANKED).v", top="PAIRS = [(2, 1.0), (1, 3.0)]\ndef sort_key(p):\n    return p[0] * ORDER\nORDER = 1\n@functools.total_ordering\nclass Ranked:\n    def __init__(self, v):\n        self.v = v\n    def __lt__(self, o):\n        return self.v < o.v\nRANKED = [Ranked(3.0), Ranked(1.0)]",
    sort_key="ORDER = -1 ;; ORDER = 1 ;; sort_key = lambda p: p[1]", sorted_list="PAIRS.append((0, 5.0)) ;; PAIRS.reverse() ;; PAIRS[0] = (9, 9.0)", ranked="RANKED[0].v = r.random() ;; Ranked.__lt__ = lambda s, o: s.v > o.v ;; RANKED.append(Ranked(0.1))",
)
feature(
    "operator module", "x = x * GETTER(ATTRS) + operator.itemgetter('k')(ATTRS2)", top="ATTRS = types.SimpleNamespace(a=1.0, b=2.0)\nATTRS2 = {'k': 1.0}\nGETTER = operator.attrgetter('a')",
    attrgetter="GETTER = operator.attrgetter('b') ;; GETTER = operator.attrgetter('a')", attrgetter_data="ATTRS.a = r.random() ;; ATTRS2['k'] = r.random()",
)
feature(
    "bound method", "x = BOUND(x) + APPEND.__self__.__len__()", top="class Owner:\n    def __init__(self, k):\n        self.k = k\n    def go(self, x):\n        return x * self.k\nBOUND = Owner(2.0).go\nAPPEND = [1].append",
    bound_method="BOUND = Owner(r.random()).go ;; BOUND = types.MethodType(lambda s, x: x + 5, None) ;; BOUND.__self__.k = r.random()", builtin_method="APPEND = [1, 2].append ;; APPEND(3)", same=["BOUND = BOUND", "BOUND = types.MethodType(BOUND.__func__, BOUND.__self__)"],
)
feature(
    "weak reference", "held = WEAK()\nx = x * held.k if held is not None else x - 1", top="class Held:\n    k = 2.0\nKEEP = Held()\nWEAK = weakref.ref(KEEP)",
    weak_dies="KEEP = None; gc.collect() ;; KEEP = None", weak_rebound="KEEP = Held(); WEAK = weakref.ref(KEEP)", weak_data="KEEP.k = r.random() ;; Held.k = r.random()",
)
feature(
    "weak dict", "x = x * WEAKLY.get(WKEY, 3.0) + len(WEAKLY)", top="class Wk:\n    pass\nWKEY = Wk()\nWEAKLY = weakref.WeakKeyDictionary({WKEY: 2.0})",
    weak_dict="WEAKLY[WKEY] = r.random() ;; WKEY = Wk(); gc.collect() ;; WEAKLY.clear()",
)
feature(
    "context variable", "x = x * CVAR.get()", top="CVAR = contextvars.ContextVar('cvar', default=2.0)",
    context_variable="CVAR.set(r.random()) ;; CVAR = contextvars.ContextVar('other', default=5.0)",
)
feature(
    "thread local", "x = x * getattr(LOCAL, 'k', 2.0)", top="LOCAL = threading.local()", thread_local="LOCAL.k = r.random() ;; LOCAL.__dict__.clear()",
)
feature(
    "logger", "x = x * 2 if LOG.isEnabledFor(logging.INFO) else x * 3", top="LOGS = []\nLOG = logging.getLogger('fuzz_guards.' + str(id(LOGS)))\nLOG.setLevel(0)\nLOG.disabled = False",
    logger_level="LOG.setLevel(logging.DEBUG) ;; LOG.setLevel(logging.ERROR)", logger_disabled="LOG.disabled = not LOG.disabled",
)
feature(
    "counter", "self_counts['n'] += 1\nx = x + self_counts['n']\nTRACE.append(1)", top="self_counts = {'n': 0}\nTRACE = []",
    counter="self_counts['n'] = 10 ;; TRACE.clear() ;; self_counts = {'n': 3} ;; TRACE = [5]",
)
feature(
    "written aliases", "LEFT.append(2.0)\nx = x + sum(RIGHT)\nLEFT.pop()", top="LEFT = [1.0]\nRIGHT = [1.0]",
    list_alias="RIGHT = LEFT ;; LEFT = RIGHT ;; LEFT = [1.0] ;; RIGHT = list(RIGHT)", list_alias_data="RIGHT[:] = [r.random()] ;; LEFT.append(1.0)",
)
feature(
    "written dict aliases", "DLEFT['k'] = 2.0\nx = x + DRIGHT.get('k', 5.0)\nDLEFT['k'] = 1.0", top="DLEFT = {}\nDRIGHT = {}",
    dict_alias="DRIGHT = DLEFT ;; DLEFT = DRIGHT ;; DLEFT = {} ;; DRIGHT = dict(DRIGHT)", dict_alias_data="DRIGHT['k'] = r.random() ;; DRIGHT.clear()",
)
feature(
    "written object aliases", "OLEFT.v = OLEFT.v + 1\nx = x * ORIGHT.v", top="class Node:\n    def __init__(self):\n        self.v = 1.0\nOLEFT = Node()\nORIGHT = Node()",
    object_alias="ORIGHT = OLEFT ;; OLEFT = ORIGHT ;; OLEFT = Node() ;; ORIGHT = Node() ;; OLEFT = copy.copy(OLEFT)", object_alias_dict="OLEFT.__dict__ = ORIGHT.__dict__", object_alias_data="ORIGHT.v = r.random()",
)
feature(
    "tensor aliases", "TLEFT.add_(1)\nx = x + TRIGHT", top="TLEFT = torch.zeros(4)\nTRIGHT = torch.zeros(4)",
    tensor_alias="TRIGHT = TLEFT ;; TLEFT = TRIGHT ;; TRIGHT = TLEFT.view(4) ;; TRIGHT = TLEFT[:1] ;; TLEFT = torch.zeros(4) ;; TRIGHT = TLEFT.clone() ;; TLEFT = torch.zeros(8)[4:]; TRIGHT = TLEFT.as_strided((4,), (1,), 2)",
    tensor_alias_data="TRIGHT.data = TLEFT.data ;; TRIGHT.set_(TLEFT)", same=["TRIGHT.mul_(0.5)"],
)
feature(
    "environment", "x = x * float(os.environ.get('FLASHOVER_FUZZ_VALUE', '1.5'))", top="", same=["os.environ['FLASHOVER_FUZZ_UNREAD'] = str(r.random())"],
)
feature(
    "import inside", "import flashover_fuzz_extra as extra\nfrom flashover_fuzz_extra import K\nx = x * K + extra.K", top="if 'flashover_fuzz_extra' not in sys.modules:\n    sys.modules['flashover_fuzz_extra'] = types.ModuleType('flashover_fuzz_extra')\nsys.modules['flashover_fuzz_extra'].K = 2.0",
)
feature(
    "itertools", "for a, b in zip(itertools.chain(CH1, CH2), itertools.count(START)):\n    x = x + a * b\nfor a in itertools.islice(CH1, LIMIT):\n    x = x - a", top="CH1 = [1.0, 2.0]\nCH2 = (3.0,)\nSTART = 1\nLIMIT = 1",
    itertools_data="CH1.append(r.random()) ;; CH2 = (r.random(), 1.0) ;; START = r.randint(0, 3) ;; LIMIT = r.randint(0, 3) ;; CH1.clear()",
)
feature(
    "copying", "made = copy.deepcopy(PROTO)\nmade['a'].append(1.0)\nx = x + sum(made['a'])", top="PROTO = {'a': [1.0]}", copied="PROTO['a'].append(r.random()) ;; PROTO['a'] = [r.random()] ;; PROTO = {'a': [], 'b': 1}",
)
feature(
    "frozen set and range", "for v in RANGE:\n    x = x + v\nx = x * (2 if 1 in FROZEN else 3)", top="RANGE = range(3)\nFROZEN = frozenset({1})",
    range_changed="RANGE = range(r.randint(0, 4)) ;; RANGE = range(0, 6, 2)", frozenset_changed="FROZEN = frozenset() ;; FROZEN = frozenset({1, 2})", same=["RANGE = range(RANGE.start, RANGE.stop, RANGE.step)"],
)
feature(
    "static in class body", "x = x * Tree.left.K + Tree.kinds['a'] + Tree.order[0]", top="class Leaf:\n    K = 1.0\nclass Tree:\n    left = Leaf\n    kinds = {'a': 1.0}\n    order = [2.0]",
    class_in_class="Tree.left = type('L', (), {'K': 3.0}) ;; Leaf.K = r.random()", class_dict="Tree.kinds['a'] = r.random() ;; Tree.kinds = {'a': 6.0} ;; Tree.order.insert(0, r.random())", same=["Tree.kinds['u'] = 1"],
)
feature(
    "super", "x = Low().go(x)", top="class Up:\n    def go(self, x):\n        return x + 1\nclass Mid(Up):\n    pass\nclass Low(Mid):\n    def go(self, x):\n        return super().go(x) * 2\nclass Up2:\n    def go(self, x):\n        return x - 5",
    super_method="Up.go = lambda s, x: x + 7 ;; Mid.go = lambda s, x: x * 9 ;; del Mid.go", super_bases="Low.__bases__ = (Up,) ;; Mid.__bases__ = (Up2,) ;; Low.__bases__ = (Mid,)", same=["Up.unread = r.random()"],
)
feature(
    "init and new", "x = x * Fresh(2.0).v", top="class Fresh:\n    F = 1.0\n    def __init__(self, v):\n        self.v = v * self.F",
    init_replaced="Fresh.__init__ = lambda s, v: setattr(s, 'v', 5.0)", new_replaced="Fresh.__new__ = staticmethod(lambda c, v: types.SimpleNamespace(v=3.0))", init_data="Fresh.F = r.random()", setattr_added="Fresh.__setattr__ = lambda s, n, v: object.__setattr__(s, n, 4.0)",
    fresh_property="Fresh.v = property(lambda s: 6.0, lambda s, v: None)", same=["Fresh.unread = r.random()"],
)
feature(
    "exec info", "try:\n    raise ValueError\nexcept ValueError:\n    x = x * (2 if sys.exc_info()[0] is ValueError else 3)\nx = x + sys.getrecursionlimit() % 100", top="",
)
feature(
    "type of", "x = x * (2 if type(TYPED) is float else 3) + (1 if TYPED.__class__ is int else 0) + len(type(TYPED).__name__)", top="TYPED = 1.0",
    type_changed="TYPED = r.choice([1, 1.0, 'a', None, [], torch.float32])", same=["TYPED = TYPED"],
)
feature(
    "class name", "x = x + len(Named.__name__) + len(Named.__qualname__) + len(Named.__mro__) + len(Named.__bases__) + (1 if Named.__doc__ else 0)", top="class Named:\n    'text'\nclass NamedBase:\n    pass\nclass Named2(NamedBase):\n    pass",
    class_name="Named.__name__ = 'N' * r.randint(1, 9)", class_qualname="Named.__qualname__ = 'N' * r.randint(1, 9)", class_rebound="Named = Named2", class_bases="Named2.__bases__ = (type('B', (), {}),) ;; Named = Named2",
)
feature(
    "function facts", "x = x + len(told.__name__) + told.__code__.co_argcount + len(told.__doc__ or '') + (told.__defaults__ or (0,))[0] + len(told.__annotations__)", top="def told(a, b=1):\n    'doc'\n",
    function_name="told.__name__ = 'n' * r.randint(1, 9)", function_doc="told.__doc__ = 'd' * r.randint(0, 9)", function_facts="told.__code__ = (lambda a: a).__code__ ;; told.__defaults__ = (r.randint(1, 5),) ;; told.__annotations__ = {'a': int}",
)
feature(
    "signature", "x = x + len(inspected(shaped))", top="import inspect\ndef shaped(a, b=1):\n    pass\ndef inspected(f):\n    return inspect.signature(f).parameters",
    signature_code="shaped.__code__ = (lambda a, b, c: a).__code__ ;; shaped.__defaults__ = None", signature_set="shaped.__signature__ = inspect.Signature()", signature_wrapped="shaped.__wrapped__ = lambda q, w, e, r: 1 ;; shaped = lambda: 1",
)

# --- modules ---

feature(
    "module attribute", "x = x * self.k0", init="self.k0 = 2.0",
    module_attribute="m.k0 = r.random() ;; m.k0 = 1", attribute_deleted="del m.k0", attribute_to_parameter="m.k0 = nn.Parameter(torch.ones(4))", attribute_to_module="m.k0 = nn.ReLU()",
    attribute_to_tensor="m.k0 = torch.ones(4) * 2", attribute_on_class="type(m).k0 = 5.0", same=["m.k0 = m.__dict__['k0']", "m.unread = r.random()"],
)
feature(
    "parameter", "x = x * self.w0 + self.w1", init="self.w0 = nn.Parameter(torch.randn(4))\nself.w1 = nn.Parameter(torch.randn(4))",
    parameter_rebound="m.w0 = nn.Parameter(torch.randn(4))", parameter_dtype="m.double() ;; m.half() ;; m.w0.data = m.w0.data.double()",
    parameter_shape="m.w0 = nn.Parameter(torch.randn(1)) ;; m.w0.data = torch.randn(1)", parameter_stride="m.w0.data = torch.randn(8)[::2]", parameter_requires_grad="m.w0.requires_grad_(False) ;; m.requires_grad_(False) ;; m.w0.requires_grad_(True)",
    parameter_none="m.w0 = None", parameter_deleted="del m.w0", parameter_tied="m.w0 = m.w1 ;; m.w1 = m.w0", parameter_data_tied="m.w0.data = m.w1.data", parameter_swapped="m.w0, m.w1 = m.w1, m.w0",
    parameter_shadowed="m.__dict__['w0'] = torch.ones(4)", parameter_table="m._parameters['w0'] = nn.Parameter(torch.zeros(4)) ;; m._parameters = dict(m._parameters) ;; m._parameters['w0'] = torch.ones(4)",
    parameter_grad="m.w0.grad = torch.ones(4) ;; m.zero_grad()",
    same=["m.w0.detach().add_(0.5)", "m.w0.data.mul_(0.5)", "m.w0.requires_grad_(m.w0.requires_grad)", "m.w0 = m.w0", "m.w1.data = m.w1.data", "m.w0.detach().copy_(torch.randn(4))", "m.load_state_dict(m.state_dict())",
          "torch.nn.init.ones_(m.w0)"],
)
feature(
    "parameters read", "for q, v in self.named_parameters():\n    x = x + v.sum().to(x.dtype) * len(q)", init="self.z = nn.Parameter(torch.ones(2))",
    parameter_added="m.z2 = nn.Parameter(torch.ones(1)) ;; m.extra = nn.Linear(1, 1)", parameter_order="m._parameters['z'] = m._parameters.pop('z')",
)
feature(
    "buffer", "x = x + self.b0", init="self.register_buffer('b0', torch.randn(4))",
    buffer_rebound="m.register_buffer('b0', torch.randn(4)) ;; m.b0 = torch.randn(1) ;; m._buffers['b0'] = torch.randn(4)", buffer_none="m.b0 = None", buffer_deleted="del m.b0", buffer_dtype="m.b0 = m.b0.double()",
    buffer_to_parameter="del m.b0; m.b0 = nn.Parameter(torch.ones(4))", same=["m.b0.add_(1)", "m.b0.copy_(torch.randn(m.b0.shape))", "m.b0 = m.b0"],
)
feature(
    "buffer written", "self.steps.add_(1)\nx = x * self.steps", init="self.register_buffer('steps', torch.zeros(1))",
    buffer_written_rebound="m.steps = torch.ones(1) * 3 ;; m.steps = torch.zeros(4)", same=["m.steps.zero_()"],
)
feature(
    "submodules", "x = self.seq(x)", init="self.seq = nn.Sequential(nn.ReLU(), nn.Tanh())",
    submodule_replaced="self = m; m.seq[0] = nn.Sigmoid() ;; m.seq[1] = nn.ReLU() ;; m.seq = nn.Sequential(nn.ELU())", submodule_inserted="m.seq.insert(0, nn.Softplus()) ;; m.seq.append(nn.GELU()) ;; m.seq.add_module('q', nn.SiLU())",
    submodule_removed="del m.seq[0]", submodule_order="m.seq._modules['0'] = m.seq._modules.pop('0')", submodule_class="m.seq[0].__class__ = nn.Sigmoid ;; m.seq.__class__ = type('S2', (nn.Sequential,), {'forward': lambda s, x: x + 1})",
    submodule_forward="m.seq[0].forward = lambda x: x * 3 ;; m.seq.forward = lambda x: x - 2", submodule_none="m.seq._modules['0'] = None", submodule_tied="m.seq[0] = m.seq[1]",
    submodule_slope="m.seq[0].inplace = True ;; m.seq[0] = nn.LeakyReLU(r.random())",
    same=["m.seq[0] = m.seq[0]", "m.seq.note = r.random()", "m.seq = m.seq"],
)
feature(
    "module list", "for layer in self.layers:\n    x = layer(x)\nx = x * len(self.layers)", init="self.layers = nn.ModuleList([nn.Tanh(), nn.ReLU()])",
    module_list="m.layers.append(nn.ELU()) ;; m.layers.insert(0, nn.Sigmoid()) ;; del m.layers[0] ;; m.layers[0] = nn.GELU() ;; m.layers = m.layers[:1] ;; m.layers = [nn.Tanh()] ;; m.layers.pop(-1)", same=["m.layers[0] = m.layers[0]"],
)
feature(
    "module dict", "for q, layer in self.parts.items():\n    x = layer(x) * len(q)\nx = self.parts['aa'](x) if 'aa' in self.parts else x", init="self.parts = nn.ModuleDict({'a': nn.Tanh(), 'bb': nn.ReLU()})",
    module_dict="self = m; m.parts['aa'] = nn.ELU() ;; m.parts.pop('a') ;; m.parts['a'] = nn.Sigmoid() ;; m.parts.clear()", module_dict_order="m.parts._modules['a'] = m.parts._modules.pop('a')", same=["m.parts['bb'] = m.parts['bb']"],
)
feature(
    "linear", "x = self.lin(x)", init="self.lin = nn.Linear(4, 4)",
    linear="m.lin = nn.Linear(4, 4) ;; m.lin.bias = None ;; m.lin = nn.Identity() ;; m.lin.weight = nn.Parameter(torch.randn(4, 4).t()) ;; m.lin.double() ;; m.lin.weight.data = torch.randn(4, 8)[:, ::2] ;; m.lin.weight.data.t_()",
    linear_tied="m.lin.bias.data = m.lin.weight.data[0]", parametrized="torch.nn.utils.parametrize.register_parametrization(m.lin, 'weight', nn.Tanh()) ;; torch.nn.utils.parametrize.remove_parametrizations(m.lin, 'weight')",
    weight_norm="torch.nn.utils.weight_norm(m.lin) ;; torch.nn.utils.remove_weight_norm(m.lin) ;; torch.nn.utils.parametrizations.weight_norm(m.lin)", pruned="import torch.nn.utils.prune as prune; prune.l1_unstructured(m.lin, 'weight', 0.5)",
    same=["m.lin.weight.data.mul_(0.5)", "m.lin.reset_parameters()", "m.lin.train(m.lin.training)"],
)
feature(
    "training flag", "x = x * 2 if self.training else x * 3\nx = self.drop(x)", init="self.drop = nn.Dropout(0.0)",
    train_eval="m.train() ;; m.eval() ;; m.drop.eval() ;; m.drop.train()", dropout_p="m.drop.p = 1.0 ;; m.drop.p = 0.0", training_none="m.training = None ;; m.training = 1", same=["m.train(m.training) if m.drop.training == m.training else None", "m.requires_grad_(True) if not list(m.parameters()) else 0"],
)
feature(
    "batch norm", "x = self.bn(x)", init="self.bn = nn.BatchNorm1d(4)",
    batch_norm_mode="m.bn.eval() ;; m.bn.train()", batch_norm_attribute="m.bn.momentum = r.choice([0.1, 0.5, None]) ;; m.bn.eps = 0.1 ;; m.bn.track_running_stats = False", batch_norm_stats="m.bn.running_mean = None; m.bn.running_var = None ;; m.bn.running_mean = torch.ones(4)",
    same=["m.bn.reset_running_stats()", "m.bn.running_mean.add_(1)", "m.bn.weight.data.mul_(2)"],
)
HOOKED = "self.hooked = nn.Tanh()\nself.handles = []"
feature(
    "forward hooks", "x = self.hooked(x)", init=HOOKED,
    forward_hook="m.handles.append(m.hooked.register_forward_hook(lambda mod, a, out: out + 1)) ;; m.handles.append(m.hooked.register_forward_hook(lambda mod, a, k, out: out * 2, with_kwargs=True)) ;; m.handles.append(m.hooked.register_forward_hook(lambda mod, a, out: out - 1, prepend=True, always_call=True))",
    forward_pre_hook="m.handles.append(m.hooked.register_forward_pre_hook(lambda mod, a: (a[0] * 2,))) ;; m.handles.append(m.hooked.register_forward_pre_hook(lambda mod, a, k: ((a[0] + 3,), k), with_kwargs=True))",
    hook_removed="m.handles.pop().remove() ;; m.handles.pop(0).remove()", own_hook="m.handles.append(m.register_forward_hook(lambda mod, a, out: out + 10)) ;; m.handles.append(m.register_forward_pre_hook(lambda mod, a: None))",
    backward_hook="m.handles.append(m.hooked.register_full_backward_hook(lambda mod, i, o: None)) ;; m.handles.append(m.hooked.register_full_backward_pre_hook(lambda mod, o: None))", hook_order="m.hooked._forward_hooks.move_to_end(next(iter(m.hooked._forward_hooks)))",
    hook_dict="m.hooked._forward_hooks = collections.OrderedDict() ;; m.hooked._forward_hooks[99] = lambda mod, a, out: out * 5",
    same=["h = m.hooked.register_forward_hook(lambda mod, a, out: out + 1); h.remove()", "m.register_state_dict_pre_hook(lambda *a: None)"],
)
feature(
    "forward replaced", "x = x + 1", init="",
    forward_replaced="type(m).forward = lambda self, x, *a, **k: x * 4 ;; m.forward = lambda x, *a, **k: x * 5 ;; m.forward = types.MethodType(lambda self, x, *a, **k: x - 1, m) ;; m.__dict__.pop('forward', 0) ;; type(m).forward.__code__ = (lambda self, x, *a, **k: x * 6).__code__",
    call_replaced_on_class="type(m).__call__ = lambda self, x, *a, **k: x * 8 ;; del type(m).__call__", call_impl="type(m)._call_impl = lambda self, x, *a, **k: x * 9 ;; m._call_impl = lambda x, *a, **k: x * 10 ;; del type(m)._call_impl",
    module_class="m.__class__ = type('Net2', (type(m),), {'forward': lambda self, x, *a, **k: x * 11})", module_getattr="type(m).__getattr__ = lambda self, n: 3.0 ;; del type(m).__getattr__", module_getattribute="type(m).__getattribute__ = lambda self, n: nn.Module.__getattribute__(self, n)",
)
feature(
    "plain containers of tensors", "x = x + self.kept[0] + self.kept_dict['a'] * self.kept[-1]", init="self.kept = [torch.ones(4), torch.zeros(4)]\nself.kept_dict = {'a': torch.ones(4)}",
    tensor_in_list="m.kept[0] = torch.randn(4) ;; m.kept.append(torch.randn(4)) ;; m.kept.reverse() ;; m.kept[0] = m.kept[1] ;; m.kept[0] = torch.ones(4, dtype=torch.float64) ;; m.kept[0] = 2.0", tensor_in_dict="m.kept_dict['a'] = torch.randn(4) ;; m.kept_dict = {} ;; m.kept_dict['a'] = m.kept[0]",
    same=["m.kept[0] = m.kept[0]", "m.kept_dict['u'] = 1"],
)
feature(
    "modules in a list", "for layer in self.loose:\n    x = layer(x)", init="self.loose = [nn.Linear(4, 4), nn.Tanh()]",
    loose_modules="m.loose.append(nn.ReLU()) ;; m.loose[0] = nn.Linear(4, 4) ;; m.loose.reverse() ;; m.loose[0].eval() ;; m.loose.clear()", loose_parameter="m.loose[0].weight = nn.Parameter(torch.randn(4, 4)) ;; m.loose[0].weight.data = torch.randn(4, 4).double()", same=["m.loose[0] = m.loose[0]"],
)
feature(
    "children", "x = x + len(list(self.children())) + len(list(self.modules())) + (1 if hasattr(self, 'late') else 0)", init="self.child = nn.Identity()",
    child_added="m.late = nn.Identity() ;; m.child = nn.Sequential(nn.ReLU()) ;; m.child = None", child_removed="del m.child ;; del m.late",
)
feature(
    "parameter list", "for p in self.plist:\n    x = x + p\nx = x * self.pdict['a']", init="self.plist = nn.ParameterList([nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))])\nself.pdict = nn.ParameterDict({'a': nn.Parameter(torch.ones(1))})",
    parameter_list="m.plist.append(nn.Parameter(torch.ones(4))) ;; m.plist[0] = nn.Parameter(torch.randn(4)) ;; m.plist = m.plist[:1]", parameter_dict="m.pdict['a'] = nn.Parameter(torch.randn(4)) ;; m.pdict.pop('a')", same=["m.plist[0].data.add_(1)"],
)
feature(
    "embedding", "x = x + self.emb(IDX)", top="IDX = torch.tensor([0, 1, 2])", init="self.emb = nn.Embedding(5, 4)",
    embedding="m.emb.padding_idx = 1 ;; m.emb = nn.Embedding(5, 4) ;; m.emb.max_norm = 0.5 ;; m.emb.max_norm = None", index_tensor="IDX = torch.tensor([2, 1, 0], dtype=torch.int32) ;; IDX = torch.tensor([[0, 1, 2]])", same=["IDX.fill_(1)"],
)

# --- tensors and arguments ---

feature(
    "second argument", "x = x + y if y is not None else x - 1",
    second_argument="i['kwargs']['y'] = torch.randn(4) ;; i['kwargs']['y'] = i['args'][0] ;; i['kwargs']['y'] = None ;; i['kwargs']['y'] = 2.0 ;; i['kwargs']['y'] = i['args'][0].view(i['args'][0].shape) ;; i['kwargs'].pop('y', 0)",
    same=["i['kwargs'].update(i['kwargs'])"],
)
feature(
    "argument written", "if y is not None:\n    y.add_(1)\n    x = x + y", second_argument_alias="i['kwargs']['y'] = torch.zeros(4) ;; i['kwargs']['y'] = i['args'][0] ;; i['kwargs']['y'] = i['args'][0][0] ;; i['kwargs']['y'] = torch.zeros(1) ;; i['args'][0] = i['args'][0].detach().clone()",
)
feature(
    "numbers as arguments", "x = x * k + len(rest) + sum(rest) + (5 if flag is not None else 0)\nfor q, v in named.items():\n    x = x + v * len(q)",
    number_argument="i['kwargs']['k'] = r.choice([1, 1.0, True, 2.5])", star_arguments="i['args'] = i['args'][:1] + [None, 2.0, 3.0] ;; i['args'] = i['args'][:1] + [None, 2.0, 3.0, 4.0]; i['kwargs'] = {} ;; i['args'] = i['args'][:1]", keyword_arguments="i['kwargs']['zz'] = r.random() ;; i['kwargs']['a'] = 1.0 ;; i['kwargs'] = dict(reversed(i['kwargs'].items()))",
    object_argument="i['kwargs']['flag'] = object() ;; i['kwargs']['flag'] = None ;; i['kwargs'].pop('flag', 0)",
)
feature(
    "tensor facts", "x = x * (2 if x.is_leaf else 3) + (1 if x.grad_fn is None else 4) + (7 if x.grad is None else 9)",
    tensor_leaf="i['args'][0] = i['args'][0].detach().requires_grad_() ;; i['args'][0] = i['args'][0].detach().requires_grad_() * 1.0", tensor_grad="i['args'][0] = i['args'][0].detach().requires_grad_(); i['args'][0].grad = torch.ones_like(i['args'][0]) ;; i['args'][0].grad = None",
)
feature(
    "tensor layout facts", "x = x * (2 if x.is_contiguous() else 3) + x.stride(0) + x.storage_offset() + x.dim() + x.numel() + x.shape[0] + x.element_size()",
    tensor_layout="i['args'][0] = torch.randn(4, 3).t() ;; i['args'][0] = torch.randn(5, 4)[2:] ;; i['args'][0] = torch.randn(8, 4)[::2]",
)
feature(
    "tensor storage facts", "x = x + x.untyped_storage().nbytes() % 7", tensor_storage="i['args'][0] = torch.randn(5, 4)[:3] ;; i['args'][0] = torch.randn(3, 4)",
)
feature(
    "tensor attribute", "x = x * getattr(x, 'tag', 2.0) + (1 if hasattr(BIAS2, 'mark') else 3)", top="BIAS2 = torch.ones(4)",
    tensor_attribute="i['args'][0].tag = r.random() ;; BIAS2.mark = 1 ;; BIAS2.__dict__.clear() ;; i['args'][0].__dict__.clear() ;; torch.Tensor.tag = 5.0; del torch.Tensor.tag", same=["BIAS2.unread = 1"],
)
feature(
    "tensor version", "x = x + BIAS3._version % 3 + BIAS3.is_inference() + BIAS3.is_shared() + BIAS3.retains_grad + BIAS3.is_pinned()", top="BIAS3 = torch.ones(4)",
    tensor_version="BIAS3.add_(1) ;; BIAS3.share_memory_() ;; BIAS3 = torch.ones(4)",
)
feature(
    "tensor pointer", "x = x * (2 if BIAS4.data_ptr() == pointer else 3)",
    top="BIAS4 = torch.ones(4)\nKEPT4 = [BIAS4.data]\npointer = BIAS4.data_ptr()",
    tensor_pointer="BIAS4 = torch.ones(4); KEPT4.append(BIAS4.data) ;; pointer = BIAS4.data_ptr() ;; BIAS4.data = torch.ones(4); KEPT4.append(BIAS4.data)",
)
feature(
    "tensor hooks", "x = x + BIAS5 * 2", top="BIAS5 = torch.ones(4, requires_grad=True)\nHANDLES = []",
    tensor_hook="BIAS5.register_hook(lambda g: g * 2) ;; BIAS5.retain_grad() ;; BIAS5.grad = torch.ones(4) ;; BIAS5.register_post_accumulate_grad_hook(lambda t: None)",
)
feature(
    "tensor subclass", "x = x + BIAS6", top="class Sub(torch.Tensor):\n    pass\nclass Loud(torch.Tensor):\n    @classmethod\n    def __torch_function__(cls, f, t, a=(), k=None):\n        return super().__torch_function__(f, t, a, k or {})\nBIAS6 = torch.ones(4)",
    tensor_class="BIAS6 = torch.ones(4).as_subclass(Sub) ;; BIAS6 = torch.ones(4).as_subclass(Loud) ;; BIAS6 = nn.Parameter(torch.ones(4)) ;; BIAS6 = nn.Buffer(torch.ones(4)) ;; BIAS6.__class__ = Sub", scalar_tensor="BIAS6 = torch.tensor(2.0) ;; BIAS6 = 2.0 ;; BIAS6 = torch.tensor(2) ;; BIAS6 = torch.ones(4, dtype=torch.complex64) ;; BIAS6 = torch.eye(4).to_sparse()",
)
feature(
    "torch functions", "x = torch.relu(x) + F.gelu(x) + x.sin() + torch.Tensor.cos(x) + x.abs()\nx = F.softmax(x, -1) * torch.exp(x.clamp(max=1))", top="",
    torch_shadowed="torch = types.SimpleNamespace(relu=torch.tanh, Tensor=torch.Tensor, exp=torch.exp, ones=torch.ones, get_default_dtype=torch.get_default_dtype) ;; F = types.SimpleNamespace(gelu=torch.tanh, softmax=F.softmax)",
)
feature(
    "factories", "x = x + torch.ones(4) * torch.tensor(1.5) + torch.arange(4) / 2 + torch.zeros(1).dtype.itemsize", top="",
)
feature(
    "matmul", "x = (x @ x.t()).sum() + x.mm(torch.eye(4, dtype=x.dtype))", top="",
)
feature("no grad inside", "with torch.no_grad():\n    x = x * (2 if torch.is_grad_enabled() else 3)\nx = x * (2 if torch.is_grad_enabled() else 3)")
feature("autocast inside", "with torch.autocast('cpu', dtype=torch.bfloat16, enabled=CASTS):\n    x = x + (x.float() @ torch.eye(4)).float()", top="CASTS = True",
        autocast_flag="CASTS = r.choice([True, False])", same=["CASTS = CASTS"])

# --- containers of other libraries, memory without a version, things that are asked through something else ---

feature(
    "numpy array", "x = x * float(NARR[0]) + torch.from_numpy(NARR).float() + NUM0", top="import numpy\nNARR = numpy.ones(4)\nNUM0 = numpy.float32(2.0)",
    numpy_item="NARR[0] = r.random() ;; NARR[:] = r.random() ;; NARR *= 2", numpy_rebound="NARR = numpy.full(4, r.random()) ;; NARR = numpy.ones(4, dtype=numpy.float32)",
    numpy_scalar="NUM0 = numpy.float32(r.random()) ;; NUM0 = numpy.float64(1.0) ;; NUM0 = numpy.int64(3)", same=["NARR = NARR", "NUM0 = NUM0"],
)
feature(
    "raw memory", "x = x * BYTES[0] + len(BYTES) + ARRAY[1] + VIEW[0]", top="import array\nBYTES = bytearray(b'\\x02\\x03')\nARRAY = array.array('d', [1.0, 2.0])\nVIEW = memoryview(BYTES)",
    raw_item="BYTES[0] = r.randint(1, 9) ;; ARRAY[1] = r.random() ;; VIEW[0] = r.randint(1, 9)", raw_rebound="ARRAY = array.array('i', [3, 4]) ;; BYTES = bytearray(b'\\x05')",
)
feature(
    "chain map", "x = x * CHAIN['a'] + CHAIN.get('b', 3) + len(CHAIN) + len(CHAIN.maps)", top="LOW = {'a': 1.0}\nTOP = {}\nCHAIN = collections.ChainMap(TOP, LOW)",
    chain_map_low="LOW['a'] = r.random() ;; LOW['b'] = 2 ;; LOW.pop('b', 0)", chain_map_top="TOP['a'] = r.random() ;; TOP.clear()", chain_map_maps="CHAIN.maps.append({'b': 5}) ;; CHAIN.maps.reverse() ;; CHAIN.maps[:] = [LOW]",
    same=["LOW['a'] = LOW['a']"],
)
feature(
    "user containers", "x = x * UDICT['a'] + sum(ULIST) + len(UDICT)", top="UDICT = collections.UserDict(a=2.0)\nULIST = collections.UserList([1.0, 2.0])",
    user_dict="UDICT['a'] = r.random() ;; UDICT.data = {'a': r.random()} ;; UDICT.data['a'] = r.random() ;; UDICT['b'] = 1", user_list="ULIST.append(r.random()) ;; ULIST.data = [r.random()] ;; ULIST.data[0] = r.random()",
)
feature(
    "mapping proxy", "x = x * PROXY['a'] + len(PROXY) + (1 if 'b' in PROXY else 2)", top="BEHIND = {'a': 2.0}\nPROXY = types.MappingProxyType(BEHIND)",
    proxy_behind="BEHIND['a'] = r.random() ;; BEHIND['b'] = 1 ;; BEHIND.pop('b', 0)", proxy_rebound="PROXY = types.MappingProxyType({'a': r.random()})",
)
feature(
    "counts", "x = x * COUNTS['a'] + COUNTS['none'] + len(COUNTS.most_common(1))", top="COUNTS = collections.Counter('aab')",
    counts="COUNTS.update('a') ;; COUNTS['a'] = 1 ;; COUNTS.clear() ;; COUNTS.subtract('ab') ;; COUNTS['none'] = 2",
)
feature(
    "attribute of a tensor", "x = x * TENSOR_WITH.scale + getattr(TENSOR_WITH, 'more', 0) + TENSOR_WITH", top="TENSOR_WITH = torch.ones(4)\nTENSOR_WITH.scale = 2.0",
    tensor_own_attribute="TENSOR_WITH.scale = r.random() ;; TENSOR_WITH.more = 3 ;; TENSOR_WITH.__dict__.pop('more', 0) ;; TENSOR_WITH.scale = torch.ones(4)", tensor_own_rebound="TENSOR_WITH = torch.ones(4); TENSOR_WITH.scale = r.random()",
    same=["TENSOR_WITH.unread = 1", "TENSOR_WITH.scale = TENSOR_WITH.scale"],
)
feature(
    "autograd function", "x = Doubled.apply(x) if x.is_floating_point() else x", top="class Doubled(torch.autograd.Function):\n    FACTOR = 2.0\n    @staticmethod\n    def forward(ctx, v):\n        return v * Doubled.FACTOR\n    @staticmethod\n    def backward(ctx, g):\n        return g * Doubled.FACTOR",
    function_data="Doubled.FACTOR = r.random()", function_forward="Doubled.forward = staticmethod(lambda ctx, v: v * 5)", function_backward="Doubled.backward = staticmethod(lambda ctx, g: g * 7)", same=["Doubled.FACTOR = Doubled.FACTOR"],
)
feature(
    "functional call", "x = torch.func.functional_call(self.fc, STATE4, (x,)) if x.dtype == self.fc.weight.dtype else x", init="self.fc = nn.Linear(4, 4)", top="STATE4 = {'weight': torch.eye(4) * 2}",
    state_value="STATE4['weight'] = torch.randn(4, 4)", state_more="STATE4['bias'] = torch.ones(4) ;; STATE4.pop('bias', 0)", state_stride="STATE4['weight'] = torch.randn(4, 4).t()", same=["STATE4['weight'].mul_(2)"],
)
feature(
    "decorated", "x = wrapped(x)", top="def outer_of(f, k):\n    @functools.wraps(f)\n    def call(*a, **kw):\n        return f(*a, **kw) * call.k + k\n    call.k = 2.0\n    return call\ndef plain_one(x):\n    return x + 1\nwrapped = outer_of(plain_one, 1.0)",
    decorated_attribute="wrapped.k = r.random()", decorated_again="wrapped = outer_of(wrapped.__wrapped__, r.random()) ;; wrapped = wrapped.__wrapped__", decorated_inside="plain_one.__code__ = (lambda x: x * 3).__code__", decorated_cell="wrapped.__closure__[0].cell_contents = wrapped.__closure__[0].cell_contents",
)
feature(
    "decorator of torch", "x = quiet(x) + (1 if torch.is_grad_enabled() else 2)", top="@torch.no_grad()\ndef quiet(x):\n    return x * QUIET\nQUIET = 2.0",
    torch_decorated="quiet = torch.enable_grad()(lambda x: x * 3) ;; quiet = torch.no_grad()(lambda x: x * QUIET)", torch_decorated_data="QUIET = r.random()",
)
feature(
    "cached property", "x = x * lazy.k", top="class Lazy:\n    BASE = 2.0\n    @functools.cached_property\n    def k(self):\n        return self.BASE * 3\nlazy = Lazy()",
    cached_dropped="lazy.__dict__.pop('k', 0) ;; Lazy.BASE = r.random(); lazy.__dict__.pop('k', 0) ;; lazy = Lazy()", cached_set="lazy.k = r.random() ;; lazy.__dict__['k'] = 1",
)
feature(
    "registry", "for c in Base9.KNOWN:\n    x = x * c.F", top="class Base9:\n    KNOWN = []\n    F = 2.0\n    def __init_subclass__(cls):\n        Base9.KNOWN.append(cls)\nclass One9(Base9):\n    pass",
    registered="class New9(Base9):\n    F = r.random()", registry_data="One9.F = r.random() ;; Base9.F = r.random()", registry_order="Base9.KNOWN.reverse() ;; Base9.KNOWN.pop() if Base9.KNOWN else 0",
)
feature(
    "groups of an optimizer", "x = x * OPT.param_groups[0]['lr'] + len(OPT.param_groups[0]['params']) + len(OPT.state)", top="OPTP = nn.Parameter(torch.ones(4))\nOPT = torch.optim.SGD([OPTP], lr=0.5, momentum=0.9)",
    group_value="OPT.param_groups[0]['lr'] = r.random()", group_added="OPT.add_param_group({'params': [nn.Parameter(torch.ones(2))]}) ;; OPT.param_groups[0]['params'].append(nn.Parameter(torch.ones(1)))", optimizer_step="OPTP.grad = torch.ones(4); OPT.step()",
)
feature(
    "patterns and texts", "x = x * len(PATTERN.findall(TEXT)) + (1 if PATTERN.match(TEXT) else 2) + len(TEXT.split(','))", top="import re\nPATTERN = re.compile('a+')\nTEXT = 'aa,b,a'",
    pattern="PATTERN = re.compile('[ab]') ;; PATTERN = re.compile('x')", text_rebound="TEXT = 'b,a' ;; TEXT = 'aaa'", same=["PATTERN = re.compile(PATTERN.pattern)", "TEXT = ''.join(list(TEXT))"],
)
feature(
    "exit stack", "with contextlib.ExitStack() as stack:\n    for c in CONTEXTS:\n        stack.enter_context(c())\n    x = x * (2 if torch.is_grad_enabled() else 3)\nx = x * len(CONTEXTS)", top="CONTEXTS = [torch.no_grad]",
    contexts="CONTEXTS.append(torch.enable_grad) ;; CONTEXTS.clear() ;; CONTEXTS[:] = [contextlib.nullcontext]",
)


# Each reads a switch of torch's; PROCESS changes them.
TORCH_READERS = [
    "x = x * (2 if torch.is_grad_enabled() else 3)",
    "x = x * (2 if torch.is_inference_mode_enabled() else 3)",
    "x = x * (2 if torch.is_autocast_enabled('cpu') else 3)",
    "x = x + (2 if torch.get_autocast_dtype('cpu') is torch.bfloat16 else 3)",
    "x = x + (2 if torch.get_default_dtype() is torch.float32 else 3)",
    "x = x * (2 if torch.are_deterministic_algorithms_enabled() else 3)",
    "x = x * (2 if torch.is_deterministic_algorithms_warn_only_enabled() else 3)",
    "x = x * (2 if torch.get_float32_matmul_precision() == 'highest' else 3)",
    "x = x * (2 if torch.backends.cudnn.enabled else 3)",
    "x = x * (2 if torch.backends.cudnn.benchmark else 3)",
    "x = x * (2 if torch.backends.cudnn.deterministic else 3)",
    "x = x * (2 if torch.backends.mkldnn.enabled else 3)",
    "x = x * (2 if torch.backends.mkldnn.deterministic else 3)",
    "x = x * (2 if torch.backends.cuda.matmul.allow_tf32 else 3)",
    "x = x * (2 if torch.backends.cudnn.allow_tf32 else 3)",
    "x = x * (2 if torch.backends.cuda.flash_sdp_enabled() else 3)",
    "x = x * (2 if torch.backends.cuda.math_sdp_enabled() else 3)",
    "x = x * (2 if torch.is_anomaly_enabled() else 3)",
    "x = x * (2 if torch.get_num_threads() == 1 else 3)",
    "x = x * (2 if torch.utils.deterministic.fill_uninitialized_memory else 3)",
    "x = x * (2 if torch.backends.opt_einsum.enabled else 3)",
    "x = x * (2 if torch.backends.nnpack.enabled() else 3) if hasattr(torch.backends.nnpack, 'enabled') else x",
    "x = x * (2 if torch._C._get_nnpack_enabled() else 3)",
    "x = x * (2 if torch.is_autocast_cache_enabled() else 3)",
    "x = x * (2 if torch._C._is_multithreading_enabled() else 3)",
    "x = x * (2 if torch._C._is_view_replay_enabled() else 3)",
    "x = x * (2 if torch._C._is_fwd_grad_enabled() else 3)",
    "x = x * (2 if torch.is_warn_always_enabled() else 3)",
    "x = x * (2 if torch.backends.quantized.engine == 'qnnpack' else 3)",
    "x = x * (2 if torch.__future__.get_overwrite_module_params_on_conversion() else 3)",
    "x = x * (2 if torch.jit.is_tracing() or torch.jit.is_scripting() else 3)",
    "x = x * (2 if torch.overrides.is_tensor_method_or_property(torch.Tensor.add) else 3)",
    "x = x * (2 if torch.get_default_device().type == 'cpu' else 3)",
    "x = x * (2 if torch._C._get_cublas_allow_fp16_reduced_precision_reduction() else 3)",
    "x = x * (2 if torch.backends.mkldnn.allow_tf32 else 3) if hasattr(torch.backends.mkldnn, 'allow_tf32') else x",
    "x = x * (2 if torch.backends.mkldnn.matmul.fp32_precision == 'none' else 3)",
    "x = x * (2 if torch.initial_seed() == 5 else 3)",
]


PROCESS: list[ProcessChange] = []


def process(kind: str, code: str, undo: str, same: bool = False) -> None:
    PROCESS.append(ProcessChange(kind, code, undo, same))


def switch(kind: str, get: str, put: str, values: str) -> None:
    """A switch with a getter and a setter; also one change that sets what is set."""
    saved = f"saved_{len(PROCESS)}"
    keep = f"{saved} = globals().get('{saved}', {get})"
    process(kind, f"{keep}\n{put.format(f'r.choice({values})')}", put.format(saved))
    process(kind + "_same", put.format(get), "pass", same=True)


switch("grad_mode", "torch.is_grad_enabled()", "torch.set_grad_enabled({})", "[True, False]")
switch("autocast_enabled", "torch.is_autocast_enabled('cpu')", "torch.set_autocast_enabled('cpu', {}); torch.clear_autocast_cache()", "[True, False]")
switch("autocast_dtype", "torch.get_autocast_dtype('cpu')", "torch.set_autocast_dtype('cpu', {}); torch.clear_autocast_cache()", "[torch.float16, torch.bfloat16]")
switch("autocast_cache", "torch.is_autocast_cache_enabled()", "torch.set_autocast_cache_enabled({})", "[True, False]")
switch("default_dtype", "torch.get_default_dtype()", "torch.set_default_dtype({})", "[torch.float32, torch.float64]")
switch("deterministic", "torch.are_deterministic_algorithms_enabled()", "torch.use_deterministic_algorithms({}, warn_only=torch.is_deterministic_algorithms_warn_only_enabled())", "[True, False]")
switch("matmul_precision", "torch.get_float32_matmul_precision()", "torch.set_float32_matmul_precision({})", "['highest', 'high', 'medium']")
switch("cudnn_enabled", "torch.backends.cudnn.enabled", "torch.backends.cudnn.enabled = {}", "[True, False]")
switch("cudnn_benchmark", "torch.backends.cudnn.benchmark", "torch.backends.cudnn.benchmark = {}", "[True, False]")
switch("cudnn_deterministic", "torch.backends.cudnn.deterministic", "torch.backends.cudnn.deterministic = {}", "[True, False]")
switch("cudnn_tf32", "torch.backends.cudnn.allow_tf32", "torch.backends.cudnn.allow_tf32 = {}", "[True, False]")
switch("mkldnn_enabled", "torch._C._get_mkldnn_enabled()", "torch._C._set_mkldnn_enabled({})", "[True, False]")
switch("mkldnn_deterministic", "torch.backends.mkldnn.deterministic", "torch.backends.mkldnn.set_flags(None, {})", "[True, False]")
switch("tf32", "torch.backends.cuda.matmul.allow_tf32", "torch.backends.cuda.matmul.allow_tf32 = {}", "[True, False]")
switch("flash_sdp", "torch.backends.cuda.flash_sdp_enabled()", "torch.backends.cuda.enable_flash_sdp({})", "[True, False]")
switch("math_sdp", "torch.backends.cuda.math_sdp_enabled()", "torch.backends.cuda.enable_math_sdp({})", "[True, False]")
switch("anomaly", "torch.is_anomaly_enabled()", "torch.autograd.set_detect_anomaly({})", "[True, False]")
switch("fill_uninitialized", "torch.utils.deterministic.fill_uninitialized_memory", "torch.utils.deterministic.fill_uninitialized_memory = {}", "[True, False]")
switch("opt_einsum", "torch.backends.opt_einsum.enabled", "torch.backends.opt_einsum.enabled = {}", "[True, False]")
switch("nnpack", "torch._C._get_nnpack_enabled()", "torch._C._set_nnpack_enabled({})", "[True, False]")
switch("multithreading", "torch._C._is_multithreading_enabled()", "torch._C._set_multithreading_enabled({})", "[True, False]")
switch("view_replay", "torch._C._is_view_replay_enabled()", "torch._C._set_view_replay_enabled({})", "[True, False]")
switch("forward_grad", "torch._C._is_fwd_grad_enabled()", "torch._C._set_fwd_grad_enabled({})", "[True, False]")
switch("warn_always", "torch.is_warn_always_enabled()", "torch.set_warn_always({})", "[True, False]")
switch("overwrite_params", "torch.__future__.get_overwrite_module_params_on_conversion()", "torch.__future__.set_overwrite_module_params_on_conversion({})", "[True, False]")
switch("cublas_reduced", "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction", "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = {}", "[True, False]")
switch("recursion_limit", "sys.getrecursionlimit()", "sys.setrecursionlimit({})", "[1500, 2000, 2025]")
switch("threads", "torch.get_num_threads()", "torch.set_num_threads({})", "[1, 2]")
process("deterministic_warn", "torch.use_deterministic_algorithms(True, warn_only=True)", "torch.use_deterministic_algorithms(False)")
process("inference_mode", "modes = globals().get('modes', []); modes.append(torch.inference_mode()); modes[-1].__enter__()", "modes.pop().__exit__(None, None, None)")
process("no_grad_context", "grads = globals().get('grads', []); grads.append(torch.no_grad()); grads[-1].__enter__()", "grads.pop().__exit__(None, None, None)")
process("autocast_context", "casts = globals().get('casts', []); casts.append(torch.autocast('cpu', r.choice([torch.float16, torch.bfloat16]))); casts[-1].__enter__()", "casts.pop().__exit__(None, None, None)")
process("default_device", "torch.set_default_device('cpu')", "torch.set_default_device(None)")
process("environment", "os.environ['FLASHOVER_FUZZ_VALUE'] = str(r.random())", "os.environ.pop('FLASHOVER_FUZZ_VALUE', None)")
process("environment_deleted", "os.environ.pop('FLASHOVER_FUZZ_VALUE', None)", "pass")
process("logging_disabled", "logging.disable(r.choice([0, logging.CRITICAL]))", "logging.disable(0)")
process("root_logger_level", "logging.getLogger().setLevel(r.choice([10, 20, 40]))", "logging.getLogger().setLevel(30)")
process("imported_module", "sys.modules['flashover_fuzz_extra'] = types.ModuleType('flashover_fuzz_extra'); sys.modules['flashover_fuzz_extra'].K = r.random()", "sys.modules.pop('flashover_fuzz_extra', None)")
process("imported_module_attribute", "setattr(sys.modules.setdefault('flashover_fuzz_extra', types.ModuleType('flashover_fuzz_extra')), 'K', r.random())", "sys.modules.pop('flashover_fuzz_extra', None)")


# --- classes and modules that each call makes anew, and that live across a break ---

feature(
    "class of the call", """
class Local(LOCAL_BASE):
    k = LOCAL_K
    def go(self, t):
        return t * self.k + self.extra
local = Local()
x = MIDWAY(x)
x = local.go(x)
""", top="LOCAL_K = 2.0\nclass LOCAL_BASE:\n    extra = 1.0\nLOCAL_FIRST = LOCAL_BASE",
    local_class_attribute="LOCAL_K = r.choice([1.0, 3.0, True, 2]) ;; LOCAL_K = torch.tensor(r.choice([1.5, 2.5])) ;; LOCAL_K = property(lambda s: 4.0)",
    local_class_base="LOCAL_BASE = type('LOCAL_BASE', (), {'extra': r.choice([1.0, 5.0])}) ;; LOCAL_BASE = type('Other', (LOCAL_BASE,), {}) ;; LOCAL_BASE = type('LB', (), {'__slots__': (), 'extra': 2.0}) ;; LOCAL_BASE = LOCAL_FIRST",
    local_class_base_attribute="LOCAL_FIRST.extra = r.choice([1.0, 2.0, 7.0])",
    local_class_special="LOCAL_FIRST.__getattribute__ = lambda s, n: 3.0 if n == 'k' else object.__getattribute__(s, n) ;; LOCAL_FIRST.__init_subclass__ = classmethod(lambda c: setattr(c, 'k', 6.0))",
    same=["LOCAL_K = LOCAL_K", "LOCAL_UNREAD = r.random()"],
)
feature(
    "function of a class of the call", """
class Taker:
    go = TAKER_GO
taker = Taker()
x = MIDWAY(x)
x = taker.go(x)
""", top="def make_taker(n, d=0.0):\n    def go(self, t, d=d):\n        return t * n + d\n    return go\nTAKER_GO = make_taker(2.0)",
    local_function_cell="TAKER_GO = make_taker(r.choice([2.0, 3.0, torch.ones(4)]))",
    local_function_default="TAKER_GO.__defaults__ = (r.choice([0.0, 1.0, 2]),) ;; TAKER_GO = make_taker(2.0, r.choice([0.0, 4.0]))",
    local_function_kind="TAKER_GO = staticmethod(lambda t: t - 1) ;; TAKER_GO = classmethod(lambda c, t: t * len(c.__name__)) ;; TAKER_GO = functools.partial(torch.add, 1) ;; TAKER_GO = torch.relu",
    local_function_code="TAKER_GO.__code__ = make_taker.__code__.replace(co_name='x') if False else TAKER_GO.__code__.replace(co_consts=TAKER_GO.__code__.co_consts) ;; TAKER_GO = lambda self, t: t * 9",
    same=["TAKER_GO = TAKER_GO"],
)
feature(
    "module of the call", """
class LocalNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.full((4,), NET_W))
        self.act = NET_ACT
    def forward(self, t):
        return self.act(t * self.w) if self.training else t - self.w
local_net = LocalNet()
if NET_HOOK is not None:
    local_net.register_forward_hook(NET_HOOK)
if NET_FROZEN:
    local_net.requires_grad_(False).eval()
x = MIDWAY(x)
x = local_net(x)
""", top="NET_W = 2.0\nNET_ACT = torch.relu\nNET_HOOK = None\nNET_FROZEN = False\nNET_MODULE = nn.Tanh()",
    local_module_number="NET_W = r.choice([1.0, 3.0])",
    local_module_part="NET_ACT = r.choice([torch.relu, torch.tanh]) ;; NET_ACT = nn.Tanh() ;; NET_ACT = NET_MODULE ;; NET_ACT = nn.Linear(4, 4) ;; NET_ACT = lambda t: t * 2",
    local_module_hook="NET_HOOK = r.choice([None, lambda m, a, out: out + 1, lambda m, a, out: out * 3])",
    local_module_frozen="NET_FROZEN = not NET_FROZEN",
    local_module_shared_part="NET_MODULE.train(r.random() < 0.5) ;; NET_MODULE.register_forward_hook(lambda m, a, out: out * 2) ;; NET_MODULE.forward = torch.sin",
    same=["NET_FROZEN = NET_FROZEN"],
)
feature(
    "torch's module of the call", """
layer = nn.Linear(4, 4, bias=LAYER_BIAS)
nn.init.constant_(layer.weight, 0.5)
if LAYER_CHANGE is not None:
    LAYER_CHANGE(layer)
x = MIDWAY(x)
x = layer(x)
""", top="LAYER_BIAS = False\nLAYER_CHANGE = None",
    local_layer_changed="LAYER_CHANGE = r.choice([None, lambda l: l.double(), lambda l: l.requires_grad_(False), lambda l: setattr(l, 'forward', torch.sin), lambda l: l.register_forward_pre_hook(lambda m, a: (a[0] + 1,)), lambda l: setattr(l, 'weight', nn.Parameter(torch.ones(2, 4))), lambda l: nn.utils.parametrize.register_parametrization(l, 'weight', nn.Tanh()), lambda l: setattr(l, 'weight', nn.Parameter(torch.ones(4, 8)[:, ::2]))])",
    same=["LAYER_BIAS = LAYER_BIAS"],
)
feature(
    "factory of classes of the call", """
made = FACTORY()
one, two = made(MADE_K), (made if MADE_SAME else FACTORY())(MADE_K)
x = MIDWAY(x)
x = one(x) + (type(one) is type(two)) + 2 * isinstance(two, type(one)) + 4 * (one == two) + MADE_SEEN.get(made, 0)
""", top="def make_factory(n):\n    def factory():\n        class Made:\n            def __init__(self, k):\n                self.k = k\n            def __call__(self, t):\n                return t * self.k + n\n        return Made\n    return factory\nFACTORY = make_factory(1.0)\nKEPT = FACTORY()\nMADE_K = 2.0\nMADE_SAME = True\nMADE_SEEN = {}",
    factory_of_classes="FACTORY = make_factory(r.choice([1.0, 2.0])) ;; FACTORY = lambda c=KEPT: c ;; FACTORY = lambda: type('Made', (KEPT,), {}) ;; FACTORY = lambda: type('Made', (), {'__init__': lambda s, k: None, '__call__': lambda s, t: t - 1})",
    factory_identity="MADE_SAME = not MADE_SAME",
    factory_number="MADE_K = r.choice([2.0, 3.0, 2])",
    factory_kept_class="KEPT.__call__ = lambda s, t: t * 8 ;; KEPT.__eq__ = lambda s, o: True ;; KEPT.__hash__ = None",
    factory_key="MADE_SEEN[KEPT] = r.choice([1, 5])",
    same=["MADE_K = MADE_K"],
)
feature(
    "tuple and data classes of the call", """
Row = collections.namedtuple("Row", ROW_FIELDS)
row = Row(*range(1, len(Row._fields) + 1))
@dataclasses.dataclass(frozen=ROW_FROZEN, order=True)
class Data:
    a: float = ROW_DEFAULT
    def scale(self, t):
        return t * self.a
data = Data()
x = MIDWAY(x)
x = data.scale(x) * row.a + len(row) + (data < Data(9.0))
""", top="ROW_FIELDS = ['a', 'b']\nROW_FROZEN = False\nROW_DEFAULT = 2.0",
    row_fields="ROW_FIELDS = r.choice([['a', 'b'], ['b', 'a'], 'c b a', ['a']])",
    data_options="ROW_FROZEN = not ROW_FROZEN",
    data_default="ROW_DEFAULT = r.choice([2.0, 3.0, 10.0])",
    same=["ROW_FIELDS = list(ROW_FIELDS) if type(ROW_FIELDS) is list else ROW_FIELDS"],
)


def patch(kind: str, where: str, name: str, value: str) -> None:
    saved = f"saved_{len(PROCESS)}"
    process(
        kind,
        f"{saved} = globals().get('{saved}', {where}.__dict__.get('{name}', None)); setattr({where}, '{name}', {value})",
        f"setattr({where}, '{name}', {saved}) if {saved} is not None else ('{name}' in {where}.__dict__ and delattr({where}, '{name}'))",
    )


patch("torch_function_patched", "torch", "relu", "torch.tanh")
patch("torch_function_patched", "torch", "exp", "(lambda v: v * 2)")
patch("functional_patched", "F", "gelu", "torch.tanh")
patch("functional_patched", "F", "softmax", "(lambda v, d, **k: v + 1)")
patch("functional_patched", "F", "linear", "(lambda x, w, b=None: x * 2)")
patch("functional_patched", "F", "relu", "(lambda x, inplace=False: x * 2)")
patch("tensor_method_patched", "torch.Tensor", "sin", "torch.Tensor.cos")
patch("tensor_method_patched", "torch.Tensor", "abs", "(lambda t: t * 3)")
patch("tensor_method_patched", "torch.Tensor", "cos", "(lambda t: t * 3)")
patch("module_function_patched", "math", "copysign", "(lambda a, b: 5.0)")
patch("module_function_patched", "math", "pi", "3.0")
patch("module_forward_patched", "nn.Tanh", "forward", "(lambda self, x: x * 2)")
patch("module_forward_patched", "nn.Linear", "forward", "(lambda self, x: x * 2)")
patch("module_call_patched", "nn.Module", "_call_impl", "(lambda self, *a, **k: self.forward(*a, **k))")
patch("builtin_patched", "builtins", "abs", "(lambda v: 17)")
patch("builtin_patched", "builtins", "max", "(lambda *v, **k: v[0] if len(v) > 1 else list(v[0])[0])")
patch("dataclass_fields_patched", "dataclasses", "fields", "(lambda c: ())")
patch("class_attribute_of_torch", "torch.Tensor", "tag", "4.0")
for hook, kind in (
    ("register_module_forward_hook(lambda mod, a, out: out + 1 if isinstance(out, torch.Tensor) else None)", "global_forward_hook"),
    ("register_module_forward_pre_hook(lambda mod, a: None)", "global_forward_pre_hook"),
    ("register_module_full_backward_hook(lambda mod, i, o: None)", "global_backward_hook"),
):
    process(kind, f"handles = globals().get('handles', []); handles.append(torch.nn.modules.module.{hook})", "handles.pop().remove()")
process("unrelated_global_of_torch", "torch.flashover_fuzz_unread = r.random()", "torch.__dict__.pop('flashover_fuzz_unread', None)", same=True)
process("garbage_collected", "gc.collect()", "pass", same=True)
process("other_thread_state", "t = threading.Thread(target=lambda: torch.set_grad_enabled(False)); t.start(); t.join()", "pass", same=True)

INPUT_CHANGES = [
    Change("input_dtype", "i['args'][0] = i['args'][0].detach().to(r.choice([torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.float32]))"),
    Change("input_bool", "i['args'][0] = i['args'][0].detach() > 0"),
    Change("input_shape", "i['args'][0] = torch.randn(r.choice([1, 2, 3, 5]), 4)"),
    Change("input_rank", "i['args'][0] = torch.randn(2, 3, 4)"),
    Change("input_empty", "i['args'][0] = torch.randn(0, 4)"),
    Change("input_stride", "i['args'][0] = torch.randn(4, 3).t()"),
    Change("input_step", "i['args'][0] = torch.randn(6, 8)[::2, ::2]"),
    Change("input_offset", "i['args'][0] = torch.randn(5, 4)[2:]"),
    Change("input_expanded", "i['args'][0] = torch.randn(1, 4).expand(3, 4)"),
    Change("input_requires_grad", "i['args'][0] = torch.randn(3, 4, requires_grad=True)"),
    Change("input_non_leaf", "i['args'][0] = torch.randn(3, 4, requires_grad=True) * 2"),
    Change("input_requires_grad_in_place", "i['args'][0] = i['args'][0].detach(); i['args'][0].requires_grad_(r.random() < 0.5)"),
    Change("input_conjugate", "i['args'][0] = torch.randn(3, 4, dtype=torch.complex64).conj()"),
    Change("input_negated", "i['args'][0] = torch.randn(3, 4, dtype=torch.complex64).conj().imag"),
    Change("input_parameter", "i['args'][0] = nn.Parameter(torch.randn(3, 4))"),
    Change("input_inference", "with torch.inference_mode():\n    i['args'][0] = torch.randn(3, 4)"),
    Change("input_data_set", "i['args'][0].data = torch.randn(2, 4)"),
    Change("input_resized", "i['args'][0] = torch.ones(2, 4); i['args'][0].resize_(1, 4)"),
    Change("input_sparse", "i['args'][0] = torch.eye(4).to_sparse()"),
    Change("input_not_a_tensor", "i['args'][0] = 3.0"),
    Change("input_scalar_tensor", "i['args'][0] = torch.tensor(3.0)"),
    Change("input_aliases_parameter", "p = next(m.parameters(), None); i['args'][0] = p.data if p is not None and p.dim() else i['args'][0]"),
    Change("input_is_parameter", "p = next(m.parameters(), None); i['args'][0] = p if p is not None else i['args'][0]"),
    Change("input_same_kind", "x0 = i['args'][0]; i['args'][0] = torch.randn(3, 4) if type(x0) is torch.Tensor and x0.shape == (3, 4) and x0.dtype is torch.float32 and x0.is_contiguous() and not x0.requires_grad and x0.is_leaf and not x0.is_inference() and not x0.is_neg() and not hasattr(x0, 'tag') and x0.storage_offset() == 0 and x0.untyped_storage().nbytes() == 48 and not torch.is_inference_mode_enabled() and torch.get_default_dtype() is torch.float32 and all(not isinstance(v, torch.Tensor) or v.untyped_storage().data_ptr() != x0.untyped_storage().data_ptr() for v in i['kwargs'].values()) else x0", same=True),
    Change("input_values", "i['args'][0].data.mul_(2)", same=True),
    Change("garbage", "gc.collect()", same=True),
    Change("train_mode", "m.train()"),
    Change("eval_mode", "m.eval()"),
    Change("all_dtype", "m.to(r.choice([torch.float32, torch.float64]))"),
    Change("all_frozen", "m.requires_grad_(r.random() < 0.5)"),
    Change("model_copied_state", "m.load_state_dict(copy.deepcopy(m.state_dict()), assign=True)"),
    Change("global_call_order", "UNRELATED = [r.random()]", same=True),
]
