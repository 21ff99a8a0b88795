"""From records and traces to one `Report`, and from it to HTML, Markdown and JSON. Renderers compute nothing."""
