// Turns: whether an answer comes too late, because the same thing was asked for again meanwhile.

// const turn = turns(); then in each update: const late = turn(); await ...; if (late()) return;
export function turns() {
  let latest = 0;
  return () => {
    latest += 1;
    const mine = latest;
    return () => mine !== latest;
  };
}
