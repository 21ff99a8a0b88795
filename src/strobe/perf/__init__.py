"""The instrument: measure, record, read traces, analyse, report. Imports only `core`; torch only in `measure`."""
