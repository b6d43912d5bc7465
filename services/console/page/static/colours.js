// The colour and letter of each job: seven jobs have one, and a job keeps its own while it is one of the seven.

const FREE = ["A", "B", "C", "D", "E", "F", "G"];
const numbers = new Map();

/** Give letters to these jobs; all other jobs lose theirs. */
export function assign(keys) {
  for (const key of [...numbers.keys()]) if (!keys.includes(key)) numbers.delete(key);
  for (const key of keys) {
    if (numbers.has(key)) continue;
    const taken = new Set(numbers.values());
    const free = FREE.findIndex((_, number) => !taken.has(number));
    if (free >= 0) numbers.set(key, free);
  }
}

export const colourOf = (key) => numbers.get(key);
export const letterOf = (key) => (numbers.has(key) ? FREE[numbers.get(key)] : "");
export const classOf = (key) => (numbers.has(key) ? `k${numbers.get(key)}` : "rest");
export const fillOf = (key) => (numbers.has(key) ? `var(--job-${numbers.get(key)})` : "var(--rest)");
