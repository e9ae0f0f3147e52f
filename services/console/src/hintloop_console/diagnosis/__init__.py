"""The running diagnosis: looks at the loop every few seconds and raises alarms. Reads figures, decides nothing."""

from hintloop_console.diagnosis.prometheus import AlarmCollector
from hintloop_console.diagnosis.watching import AlarmWatch, LookFailures, watch_alarms

__all__ = ["AlarmCollector", "AlarmWatch", "LookFailures", "watch_alarms"]
