"""What holds for every test of the project."""

pytest_plugins = ["tests.ci"]
