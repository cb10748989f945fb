"""From a trace to numbers: pure functions, a file a measure; `report.report` puts them together."""
