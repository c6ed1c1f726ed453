"""The faults of mutation_testing.py can still be put into the sources."""

import mutation_testing


def test_every_fault_has_its_place() -> None:
    texts = mutation_testing.faulty_texts()
    for fault in mutation_testing.FAULTS:
        assert any(f'"{fault.name}"' in texts[file] for file, _, _ in fault.edits), fault.name
