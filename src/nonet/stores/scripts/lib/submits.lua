-- lib/submits: needs now. How fast tenants submit, while their ceilings say how fast they may: a leaky bucket each.
-- STRING paid:TENANT: when (µs) its submissions are paid off, at the rate of its ceiling; no key if they are.

local function paid_by(tenant)
  return math.max(now, tonumber(redis.call('GET', P .. 'paid:' .. tenant) or '0'))
end

-- How many tasks of a tenant are not paid off. rate: a second.
local function unpaid(tenant, rate)
  return math.floor((paid_by(tenant) - now) * rate / 1000000 + 0.5)
end

local function charge(tenant, number)
  local rates = redis.call('HMGET', P .. 'ceilings', 'tenant-rate:' .. tenant, 'tenant-rate:default')
  local rate = tonumber(rates[1] or rates[2] or '')
  if rate then
    local paid = paid_by(tenant) + number * 1000000 / rate
    redis.call('SET', P .. 'paid:' .. tenant, digits(paid), 'PX', digits(math.ceil((paid - now) / 1000)))
  end
end
