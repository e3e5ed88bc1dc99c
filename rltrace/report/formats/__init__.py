"""The report in other forms: terminal, Markdown, JSON, metrics, spans."""
