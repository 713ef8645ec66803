"""A small web service on Nonet: it makes thumbnails of the pictures on a web page."""
