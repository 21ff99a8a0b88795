"""Reports: one `Report` from records and traces, and its renderings as HTML, Markdown and JSON. Renderers compute nothing."""
