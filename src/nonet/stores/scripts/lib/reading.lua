-- lib/reading: needs base. For scripts with the flag no-writes: they work while Redis refuses writes, because its disk is
-- full, it has lost its replicas or it is one. Other parts then remove nothing that has expired.
reads_only = true
