"""The shell: it carries out what the cores decide. Handlers, drivers, parking, boot."""
