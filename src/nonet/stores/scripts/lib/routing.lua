-- lib/routing: needs now. To which namespace a task belongs, by its tenant. HASH routes: tenant, or '*' for those that are
-- not listed -> namespace; STRING routed exists while the hash does.

-- The namespace to which these terms send a task, unless it is this one; nil: it belongs here.
local function elsewhere(terms)
  if not marks[7] then
    return nil
  end
  local found = redis.call('HMGET', P .. 'routes', string.match('\n' .. terms, '\ntenant|([^\n]*)') or '', '*')
  local namespace = found[1] or found[2]
  return namespace and namespace ~= string.sub(P, 2, -3) and namespace or nil
end
