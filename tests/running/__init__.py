"""Imports nothing: functions of this package run in workers, each of which would import it too."""
