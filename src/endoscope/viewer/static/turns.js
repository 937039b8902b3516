// Turns: whether an answer is late, because a newer request was made meanwhile.

// const turn = turns(); then in each update: const late = turn(); await ...; if (late()) return;
export function turns() {
  let latest = 0;
  return () => {
    latest += 1;
    const mine = latest;
    return () => mine !== latest;
  };
}
