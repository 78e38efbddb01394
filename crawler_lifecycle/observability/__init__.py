"""How our processes tell what they do: log lines, figures and traces, with every secret left out."""
