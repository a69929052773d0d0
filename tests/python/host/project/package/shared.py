"""What a module of the package imports relatively."""

GREETING = "from the package"
