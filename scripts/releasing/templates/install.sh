#!/bin/sh
# Installs the program `towpath` @version@ for one user: ~/.local/bin/towpath, manual pages and completions beside it.
#
#   PREFIX             where to install (default: ~/.local)
#   TOWPATH_BASE_URL   where the packages are (default: the release on GitHub); file:// addresses work
#   TOWPATH_LIBC       gnu or musl (default: as the system has)
set -eu

version=@version@
base=${TOWPATH_BASE_URL:-@homepage@/releases/download/v$version}
prefix=${PREFIX:-${HOME:?}/.local}

fail() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

[ "$(uname -s)" = Linux ] || fail "there are packages for Linux only; this is $(uname -s)"
case $(uname -m) in
    x86_64 | amd64) machine=x86_64 ;;
    aarch64 | arm64) machine=aarch64 ;;
    *) fail "there is no package for $(uname -m)" ;;
esac

# Builds for glibc need @glibc@ or newer; the static ones run everywhere.
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed -n 's/^glibc //p')
newest=$(printf '%s\n' "${glibc:-0}" @glibc@ | sort -t . -k 1,1n -k 2,2n | tail -n 1)
if [ -n "$glibc" ] && [ "$newest" = "$glibc" ]; then libc=gnu; else libc=musl; fi
libc=${TOWPATH_LIBC:-$libc}

# The packages of this version, and their SHA-256.
case $machine-$libc in
@cases@
    *) fail "version $version has no package for $machine with $libc (glibc here: ${glibc:-none})" ;;
esac

if command -v curl >/dev/null; then
    fetch() { curl --fail --silent --show-error --location --output "$2" "$1"; }
elif command -v wget >/dev/null; then
    fetch() { wget --quiet --output-document "$2" "$1"; }
else
    fail "curl or wget is needed"
fi
if command -v sha256sum >/dev/null; then
    digest() { sha256sum "$1" | cut -d ' ' -f 1; }
elif command -v shasum >/dev/null; then
    digest() { shasum -a 256 "$1" | cut -d ' ' -f 1; }
else
    fail "sha256sum or shasum is needed"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
fetch "$base/$name" "$work/package" || fail "cannot fetch $base/$name"
found=$(digest "$work/package")
[ "$found" = "$sha256" ] || fail "$base/$name has SHA-256 $found, expected $sha256; nothing was installed"
tar -C "$work" -xzf "$work/package"
unpacked=$work/${name%.tar.gz}
mkdir -p "$prefix/bin"
cp -R "$unpacked/share" "$prefix/"
# A running server keeps the program that it was started from.
cp "$unpacked/bin/towpath" "$prefix/bin/.towpath.new"
mv -f "$prefix/bin/.towpath.new" "$prefix/bin/towpath"
"$prefix/bin/towpath" --version >/dev/null || fail "the program does not run on this system"
echo "installed towpath $version as $prefix/bin/towpath"
case :$PATH: in *":$prefix/bin:"*) ;; *) echo "add it to your path: export PATH=\"$prefix/bin:\$PATH\"" ;; esac
