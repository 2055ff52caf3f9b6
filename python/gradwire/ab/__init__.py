"""`gradwire ab`: a training command under several codecs, compared."""
