"""Everything that serves this paper alone: data, networks, measurements, tables, figures and claims."""
