"""The kinds of clusters that execute tasks, with one package for each kind."""
