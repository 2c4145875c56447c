"""A trained model: its folder, its graphs as functions on arrays, the search for a sentence. The only package that
imports OpenVINO."""
