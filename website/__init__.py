"""What the site has beside its pages, and what is checked of it: see `nox -s docs`."""
