"""The generator of `headrace.wire.messages`: table -> model (`table`) -> readers, writers, classes (`modules`)."""
