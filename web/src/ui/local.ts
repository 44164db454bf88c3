// Which addresses are on this computer or its network. Something may listen there that trusts whoever comes from this computer.

/** Endings of names that are not of the public internet. */
const LOCAL_NAMES = /(^|\.)(localhost|local|internal|lan|home|corp|intranet|home\.arpa)$/;

/** Whether a URL leads to this computer or to a private network. A name that a public DNS server resolves to such an address is not known here. */
export function isLocal(address: string): boolean {
  if (!URL.canParse(address)) return false;
  // The parser writes every form of an IPv4 address (decimal, hexadecimal, short) as four numbers.
  const host = new URL(address).hostname.replace(/\.$/, "").toLowerCase();
  if (!host) return false;
  if (host.startsWith("[")) return !isPublic6(groups(host.slice(1, -1)));
  const v4 = /^(\d+)\.(\d+)\.(\d+)\.(\d+)$/.exec(host);
  if (v4) return !isPublic4(v4.slice(1).map(Number));
  // A name without a dot is one of this network.
  return !host.includes(".") || LOCAL_NAMES.test(host);
}

function isPublic4([a, b, c]: number[]): boolean {
  return !(
    a === 0 ||
    a === 10 ||
    a === 127 ||
    a! >= 224 ||
    (a === 100 && b! >= 64 && b! < 128) ||
    (a === 169 && b === 254) ||
    (a === 172 && b! >= 16 && b! < 32) ||
    (a === 192 && b === 168) ||
    (a === 192 && b === 0 && (c === 0 || c === 2)) ||
    (a === 198 && (b === 18 || b === 19)) ||
    (a === 198 && b === 51 && c === 100) ||
    (a === 203 && b === 0 && c === 113)
  );
}

/** The eight groups of an IPv6 address as the URL parser writes it. */
function groups(text: string): number[] {
  const [head, tail] = text.split("::").map((part) => (part ? part.split(":").map((group) => parseInt(group, 16)) : []));
  if (!tail) return head!;
  return [...head!, ...new Array<number>(8 - head!.length - tail.length).fill(0), ...tail];
}

function isPublic6(all: number[]): boolean {
  const carried = (high: number, low: number) => isPublic4([high >> 8, high & 255, low >> 8, low & 255]);
  const zeros = (from: number, to: number) => all.slice(from, to).every((group) => group === 0);
  // Mapped, NAT64 and 6to4 addresses are as public as the IPv4 address in them.
  if (zeros(0, 5) && all[5] === 0xffff) return carried(all[6]!, all[7]!);
  if (all[0] === 0x64 && all[1] === 0xff9b && zeros(2, 6)) return carried(all[6]!, all[7]!);
  if (all[0] === 0x2002) return carried(all[1]!, all[2]!);
  // Global unicast.
  return (all[0]! & 0xe000) === 0x2000;
}
