-- Takes ids from the queues of a pool: tenants in turn, with an equal share each.
-- ARGV: how many; milliseconds after which unused queues are deleted; the number of ids below which more are read from
-- the database, and for how many milliseconds one process does that; the milliseconds between two checks.
-- Returns `refill`, `check` or `none` for the caller to do, the number of ids that are left, and the ids.
local wanted, life, low = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local answer = { 'none', '0' }
while wanted > 0 and total > 0 do
  local tenants = redis.call('ZCARD', turns)
  if tenants == 0 then
    total = 0
    break
  end
  local share = math.max(1, math.floor(wanted / tenants))
  for _ = 1, math.min(tenants, wanted) do
    local tenant = redis.call('ZRANGE', turns, 0, 0)[1]
    if not tenant or wanted == 0 then
      break
    end
    local taken = redis.call('ZPOPMIN', KEYS[6] .. tenant, math.min(share, wanted))
    for i = 1, #taken, 2 do
      answer[#answer + 1] = taken[i]
      wanted = wanted - 1
    end
    redis.call('ZADD', turns, redis.call('HINCRBY', state, 'turn', 1), tenant)
    count(tenant)
  end
end
answer[2] = tostring(total)
keep(life)
if total < low and redis.call('HEXISTS', state, 'more') == 1 and redis.call('SET', KEYS[4], 1, 'NX', 'PX', ARGV[4]) then
  answer[1] = 'refill'
elseif redis.call('SET', KEYS[5], 1, 'NX', 'PX', ARGV[5]) then
  answer[1] = 'check'
end
return answer
