"""Offload: what is not in use leaves the device. The plan is forms/offload.py; this executes it."""
