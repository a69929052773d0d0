-- Takes a place in each of several sliding windows, or in none of them.
-- KEYS: the log of each window, a list of the moments of those who passed, the oldest first.
-- ARGV: for each how many may stand in it, and its length in microseconds.
-- Answers for each how many stand in it, and how many microseconds it refuses for; 0 lets in.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local answer, moments, pass = {}, {}, true
for i, key in ipairs(KEYS) do
  local count, length = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
  local held, moment = redis.call('LLEN', key), now
  if held > 0 then
    local last = tonumber(redis.call('LINDEX', key, -1))
    if last - now > length then
      -- The clock was set back by more than a window.
      redis.call('DEL', key)
      held = 0
    elseif last > now then
      moment = last
    end
  end
  local function over(index)
    return tonumber(redis.call('LINDEX', key, index)) <= moment - length
  end
  if held > 0 and over(0) then
    local low, high = 0, 1
    while high < held and over(high) do
      low, high = high, high * 2
    end
    high = math.min(high, held)
    while high - low > 1 do
      local middle = math.floor((low + high) / 2)
      if over(middle) then low = middle else high = middle end
    end
    redis.call('LTRIM', key, high, -1)
    held = held - high
  end
  local wait = 0
  if held >= count then
    wait = tonumber(redis.call('LINDEX', key, held - count)) + length - now
    pass = false
  end
  moments[i], answer[2 * i - 1], answer[2 * i] = moment, held, wait
end
if pass then
  for i, key in ipairs(KEYS) do
    redis.call('RPUSH', key, string.format('%.0f', moments[i]))
    redis.call('PEXPIRE', key, math.ceil(tonumber(ARGV[2 * i]) / 1000) + 1)
    answer[2 * i - 1] = answer[2 * i - 1] + 1
  end
end
return answer
