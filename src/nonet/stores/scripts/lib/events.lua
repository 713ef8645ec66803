-- lib/events: needs base. The event stream: who changed what in this namespace, and when.

local MOST_EVENTS = 10000

-- Append an event: kind is a word for programs, who is user@host pid, text is for people.
local function log_event(kind, who, text)
  redis.call('XADD', P .. 'events', 'MAXLEN', '~', MOST_EVENTS, '*',
    'kind', kind, 'at', digits(now - offset), 'who', who, 'text', text)
end
