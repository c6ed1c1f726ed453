// The identity of a product's code.
#include "loops/product.h"

namespace flashover::loops {

std::string text(const Product& p) {
  std::string out = "product " + std::to_string(p.batch) + " " + std::to_string(p.m) + " " + std::to_string(p.n) + " " +
                    std::to_string(p.k) + " " + info(p.dtype).name;
  for (const auto& strides : {p.a, p.b})
    for (int64_t s : strides) out += " " + std::to_string(s);
  out += std::string(" bias ") + (p.bias == DType::kUndefined ? "none" : info(p.bias).name) + (p.relu ? " relu" : "");
  const ProductTile& t = p.tile;
  for (int32_t v : {t.m, t.n, t.k, t.warps, t.stages}) out += " " + std::to_string(v);
  out += " slot " + std::to_string(p.slot) + "\n" + text(p.epilogue);
  for (const Prologue& before : p.prologue)
    if (before.given())
      out += std::string("before ") + (&before == p.prologue.data() ? "a" : "b") + (before.turned ? " turned" : "") +
             "\n" + text(before.kernel);
  return out;
}

}  // namespace flashover::loops
