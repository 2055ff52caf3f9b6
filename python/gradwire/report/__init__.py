"""Pages and charts: self-contained HTML and SVG."""
