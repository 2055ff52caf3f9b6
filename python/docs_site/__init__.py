"""What builds the documentation site from python/docs, the sources and the settings; see README.md here."""
