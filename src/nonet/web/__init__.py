"""The dashboard and the API: pages for people and ``/api/v1`` for programs, over one namespace."""
