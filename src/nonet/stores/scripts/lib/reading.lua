-- lib/reading: needs base. For scripts with the flag no-writes, which work while Redis refuses writes (full disk, lost
-- replicas, a replica). Other parts then do not remove what has expired.
reads_only = true
