#!/bin/sh
# Run by systemd in a container: the life of the service, from its installation to its purge.
exec >/result 2>&1
set -eu
fail() { echo "failed: $*"; journalctl --unit towpath --no-pager --output cat | tail -n 40; exit 1; }
ready() {
    tries=0
    until curl -sf http://127.0.0.1:8400/readyz >/dev/null; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || fail "the service is not ready"
        sleep 0.1
    done
}
step() { echo "step: $* ($(date +%s.%N))"; }

step install
dpkg --install /towpath.deb
runuser -u towpath -- env TOWPATH_CONFIG=/etc/towpath/towpath.toml towpath keys create >/key
TOWPATH_API_KEY=$(grep -o 'towpath_[0-9a-f]*' /key)
export TOWPATH_API_KEY
step start
systemctl enable --now towpath
ready
step sandbox
towpath sandbox create kept
[ "$(towpath sandbox exec kept 'echo file >~/kept; echo yes')" = yes ] || fail "a sandbox runs no command"
towpath sandbox exec --detach kept sleep 600
step restart
systemctl restart towpath
ready
[ "$(towpath sandbox exec kept 'cat ~/kept')" = file ] || fail "the files of a sandbox are gone after a restart"
if [ "$(systemctl show --property KillMode --value towpath)" = process ]; then
    towpath sandbox ps kept | grep -q running || fail "the command of a sandbox is gone after a restart"
fi
step upgrade
dpkg --install /towpath.deb
ready
step isolate
install -D -m 0644 /usr/share/towpath/isolate-deployments.conf /etc/systemd/system/towpath.service.d/isolate-deployments.conf
chown -R root: /var/lib/towpath
sed -i 's/^backend = "none"/backend = "process"/' /etc/towpath/towpath.toml
systemctl daemon-reload
systemctl restart towpath
ready
step stop
systemctl stop towpath
[ "$(systemctl show --property Result --value towpath)" = success ] || fail "it did not stop as it should"
step remove
apt-get -qq -y remove towpath
[ -e /etc/towpath/towpath.toml ] || fail "a removal took the settings"
if pgrep -x sleep >/dev/null; then fail "a sandbox outlived the package"; fi
step purge
apt-get -qq -y purge towpath
if [ -e /var/lib/towpath ] || [ -e /etc/towpath ]; then fail "a purge left data"; fi
step end
echo passed
