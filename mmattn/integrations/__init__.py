"""Our backbones and operators in other libraries, by the conventions of each."""
