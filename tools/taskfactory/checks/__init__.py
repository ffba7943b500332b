"""Static checks of a loaded spec: nothing is executed, every finding has a stable code (`taskfactory.checks.codes`)."""
