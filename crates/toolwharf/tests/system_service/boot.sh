# Boots systemd as the first process of its own process and mount namespaces, with units from $FOLDER/units only. What it
# writes to /etc and /var/lib is kept in $FOLDER, for the next boot. Run by `unshare --mount --pid --fork`.
set -e
for group in $GROUPS_OF_BOOT; do
    echo 0 > "$group/cgroup.procs"
done
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
etc=$FOLDER/etc
if [ ! -e "$etc" ]; then
    # A copy, because the file system of $FOLDER may not support an overlay.
    cp -a /etc "$etc"
    rm -rf "$etc/systemd/system"
    cp -r "$FOLDER/units" "$etc/systemd/system"
    echo 'toolwharf:x:64123:64123::/var/lib/toolwharf:/usr/sbin/nologin' >> "$etc/passwd"
    echo 'toolwharf:x:64123:' >> "$etc/group"
    mkdir -m 770 "$etc/toolwharf"
    cp "$FOLDER/mcp.json" "$FOLDER/toolwharf.toml" "$etc/toolwharf"
    chown -R 64123:64123 "$etc/toolwharf"
    mkdir "$FOLDER/var"
fi
mount --bind "$etc" /etc
mount --bind "$FOLDER/var" /var/lib
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=other SYSTEMD_UNIT_PATH=/etc/systemd/system \
    /lib/systemd/systemd --system --log-target=console --show-status=no
