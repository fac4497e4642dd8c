/* The law of a token bucket, for the pictures on the page "the law".

   Integers only (BigInt): tokens are millitokens, times are milliseconds since the epoch. It is the
   arithmetic of `zae_limiter.engine.law`, and a test tells both the same stories and compares every
   state and every wait. It knows plain rates; quotas, schedules and seats are not drawn. */
(() => {
  "use strict";

  const least = (a, b) => (a < b ? a : b);
  const most = (a, b) => (a > b ? a : b);
  const upwards = (a, b) => (a + b - 1n) / b; // for a of 0 and more

  /* What a rate has brought since the epoch. Gains are differences of it, so they telescope: however
     often somebody looks, they add up to the gain of the whole. */
  const accrued = (rate, at) => (at * rate.amount) / rate.period;

  const gain = (rate, origin, now) => (now <= origin ? 0n : accrued(rate, now) - accrued(rate, origin));

  const balance = (rate, tokens, origin, now) => least(rate.capacity, tokens + gain(rate, origin, now));

  /* The smallest wait in which so much accrues. */
  const waitFor = (rate, missing, now) =>
    missing <= 0n ? 0n : upwards((accrued(rate, now) + missing) * rate.period, rate.amount) - now;

  class Bucket {
    /* `rates` by name of the limit: { capacity, amount, period } in millitokens and milliseconds. */
    constructor(rates, now) {
      this.rates = rates;
      this.origin = now;
      this.tokens = {};
      for (const name of Object.keys(rates)) this.tokens[name] = rates[name].capacity;
    }

    /* What each limit holds at an instant; negative while it is in debt. */
    at(now) {
      const held = {};
      for (const [name, rate] of Object.entries(this.rates)) {
        held[name] = balance(rate, this.tokens[name], this.origin, now);
      }
      return held;
    }

    /* How long each limit needs until it has enough; null is never. */
    waits(demand, now) {
      const held = this.at(now);
      const waits = {};
      for (const [name, need] of Object.entries(demand)) {
        const rate = this.rates[name];
        waits[name] = need > rate.capacity ? null : waitFor(rate, need - held[name], now);
      }
      return waits;
    }

    /* All of a demand, or none of it. */
    acquire(demand, now) {
      const waits = this.waits(demand, now);
      const refusing = Object.keys(waits).filter((name) => waits[name] !== 0n);
      if (refusing.length > 0) return { admitted: false, refusing, retryAfter: longest(waits) };
      this.#add(demand, -1n, now);
      return { admitted: true, lease: { taken: { ...demand } } };
    }

    /* A turn in the order of asking: it is taken at once, into debt, and begins when the debt is paid. */
    book(demand, now, patience) {
      const wait = longest(this.waits(demand, now));
      if (wait === null || wait > patience) return { admitted: false, retryAfter: wait };
      this.#add(demand, -1n, now);
      return { admitted: true, wait, lease: { taken: { ...demand } } };
    }

    /* The work is done and took so much: more than was reserved is debt, less comes back. */
    settle(lease, totals, now) {
      const more = {};
      for (const [name, total] of Object.entries(totals)) more[name] = total - (lease.taken[name] ?? 0n);
      this.#add(more, -1n, now);
      lease.taken = { ...lease.taken, ...totals };
    }

    /* The work failed: all of it comes back, as far as the bucket can hold it. */
    refund(lease, now) {
      this.#add(lease.taken, 1n, now);
      lease.taken = {};
    }

    #add(amounts, sign, now) {
      const held = this.at(now);
      this.origin = most(this.origin, now);
      for (const name of Object.keys(this.rates)) {
        this.tokens[name] = held[name] + sign * (amounts[name] ?? 0n); // the balance has the capacity in it
      }
    }
  }

  function longest(waits) {
    const all = Object.values(waits);
    return all.includes(null) ? null : all.reduce(most, 0n);
  }

  globalThis.zaeLaw = { Bucket, accrued, balance, waitFor };
})();
