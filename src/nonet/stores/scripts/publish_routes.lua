#!lua flags=allow-oom
-- publish_routes: replace the routes of the configuration: which tenants belong to which namespace. A tenant that was
-- moved by hand stays where it is, until the configuration says the same.
-- KEYS  prefix
-- ARGV  term, version of these routes ('' for none), who, n × (tenant or '*', namespace)
-- returns 1, or 0 if another term leads
-- @include base leading events
local term, version, who = ARGV[1], ARGV[2], ARGV[3]
if not leads(term) then
  return 0
end
local before, words, configured, fields = {}, {}, {}, {unpack(ARGV, 4)}
for i = 1, #fields, 2 do
  configured[fields[i]] = fields[i + 1]
end
local flat = redis.call('HGETALL', P .. 'routes')
for i = 1, #flat, 2 do
  local kind, tenant = string.match(flat[i], '^(%l+):(.*)$')
  if kind ~= 'moved' and kind ~= 'came' then
    before[flat[i]] = flat[i + 1]
  elseif kind == 'came' or (configured[tenant] or configured['*']) ~= flat[i + 1] then
    fields[#fields + 1], fields[#fields + 2] = flat[i], flat[i + 1]
  end
end
-- While the mark exists, the hash is whole. If Redis stops the script in between, the leader publishes again.
redis.call('DEL', P .. 'routed', P .. 'routes')
if #fields > 0 then
  redis.call('HSET', P .. 'routes', unpack(fields))
end
for i = 4, #ARGV, 2 do
  local tenant, namespace = ARGV[i], ARGV[i + 1]
  if before[tenant] ~= namespace then
    words[#words + 1] = tenant .. ': ' .. (before[tenant] or 'not set') .. ' -> ' .. namespace
  end
  before[tenant] = nil
end
for tenant, was in pairs(before) do
  words[#words + 1] = tenant .. ': ' .. was .. ' -> not set'
end
if #fields > 0 then
  redis.call('SET', P .. 'routed', version ~= '' and version or 'moved')
end
if #words > 0 then
  table.sort(words)
  local more = #words > 20 and '; and ' .. #words - 20 .. ' more' or ''
  log_event('routes-published', who, table.concat(words, '; ', 1, math.min(#words, 20)) .. more)
end
return 1
