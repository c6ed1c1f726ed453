"""The faults of oracle.py can still be put into the sources."""

import oracle


def test_every_fault_has_its_place() -> None:
    texts = oracle.faulty_texts()
    for fault in oracle.FAULTS:
        assert any(f'"{fault.name}"' in texts[file] for file, _, _ in fault.edits), fault.name
