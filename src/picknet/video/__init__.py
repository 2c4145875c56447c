"""Frames from files, pictures, cameras and streams. The only package that imports PyAV."""
