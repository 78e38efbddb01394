"""The clusters that execute tasks: one package for each kind."""
