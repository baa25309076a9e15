"""The pytest plugin: fixtures that give a test a real broker. Imported by pytest in every project that has Headrace
installed, so it imports nothing heavy until a fixture is asked for."""
