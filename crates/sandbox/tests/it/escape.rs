//! What a box must not see or do, as its user and as its root.

use towpath_sandbox::{BoxAgent, Driver as _};

use crate::fixture::{SandboxFixture, as_root, prints, request, run};

/// Each has to print nothing but `blocked`.
async fn blocked(agent: &BoxAgent, attempts: &[(&str, &str)]) {
    let mut passed = Vec::new();
    for (name, attempt) in attempts {
        for (user, request) in [("user", request(attempt)), ("root", as_root(attempt))] {
            let outcome = run(agent, &request).await;
            if outcome.exit_code == 0 {
                passed.push(format!("{name} as {user}: {outcome:?}"));
            }
        }
    }
    assert!(passed.is_empty(), "{}", passed.join("\n"));
}

#[tokio::test]
async fn nothing_of_the_host_is_seen() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let secret = world.path("secret");
    std::fs::write(&secret, "secret").unwrap();
    let (handle, agent) = world.start(&world.spec(), 1).await;
    let secret = secret.display();
    blocked(
        &agent,
        &[
            ("a file of the host", &format!("cat {secret}")),
            ("through the first process", &format!("cat /proc/1/root{secret}")),
            (
                "the host's users",
                "grep -v -e '^root:' -e '^user:' -e '^nobody:' /etc/passwd",
            ),
            ("the host's secrets", "cat /etc/shadow"),
            (
                "the platform's environment",
                "tr '\\0' '\\n' < /proc/1/environ | grep .",
            ),
            ("descriptors of the agent", "ls /proc/1/fd/0"),
            ("memory of the agent", "head -c 1 /proc/1/mem"),
            ("kernel memory", "head -c 1 /proc/kcore | grep -q ."),
            (
                "disks",
                "ls /dev/sd* /dev/vd* /dev/nvme* /dev/loop* 2>/dev/null | grep .",
            ),
            ("control groups", "ls /sys/fs/cgroup/*"),
        ],
    )
    .await;
    let pids = prints(&agent, &as_root("ls /proc | grep -c '^[0-9]*$'")).await;
    assert!(pids.trim().parse::<u32>().unwrap() < 10, "{pids}");
    let mounts = prints(&agent, &as_root("grep ' / ' /proc/self/mountinfo")).await;
    assert!(!mounts.contains(&world.path("").display().to_string()), "{mounts}");
    world.driver.destroy(handle.id, 1).await.unwrap();
}

#[tokio::test]
async fn there_is_no_network() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (handle, agent) = world.start(&world.spec(), 1).await;
    let links = prints(&agent, &request("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")).await;
    assert_eq!(links, "lo\n");
    blocked(
        &agent,
        &[
            ("the host's loopback", &format!("exec 3<>/dev/tcp/127.0.0.1/{port}")),
            ("the metadata service", "exec 3<>/dev/tcp/169.254.169.254/80"),
            ("the internet", "exec 3<>/dev/tcp/1.1.1.1/443"),
            ("another interface", "ip link add dummy0 type dummy"),
            (
                "raw sockets",
                "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)'",
            ),
            (
                "kernel crypto",
                "python3 -c 'import socket; socket.socket(38, socket.SOCK_SEQPACKET, 0)'",
            ),
            (
                "the virtual machine's host",
                "python3 -c 'import socket; socket.socket(40, socket.SOCK_STREAM, 0)'",
            ),
        ],
    )
    .await;
    world.driver.destroy(handle.id, 1).await.unwrap();
}

#[tokio::test]
async fn there_is_no_way_to_other_rights() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let (handle, agent) = world.start(&world.spec(), 1).await;
    blocked(
        &agent,
        &[
            ("a mount", "mount -t tmpfs none /mnt"),
            ("a remount", "mount -o remount,rw /usr"),
            ("an unmount", "umount /proc"),
            ("a namespace of users", "unshare -U true"),
            ("a namespace of mounts", "unshare -m true"),
            ("the agent's namespaces", "nsenter -t 1 -m true"),
            ("a device", "mknod /tmp/disk b 254 0"),
            ("another root", "chroot / true"),
            ("system settings", "echo x > /proc/sys/kernel/core_pattern"),
            ("the host's name", "hostname other"),
            ("system requests", "echo h > /proc/sysrq-trigger"),
            ("writing to programs", "touch /usr/bin/x"),
            ("writing to the agent", "echo x > /run/towpath/agent"),
            ("writing to the agent's program", "echo x > /proc/1/exe"),
            ("killing the agent", "kill -9 1; kill -0 1 && test ! -d /proc/1"),
            ("a filter of the kernel", "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(321, 0, 0, 0) == -1)'"),
            ("io_uring", "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None, use_errno=True).syscall(425, 1, ctypes.create_string_buffer(200)) == -1)'"),
            ("input of another terminal", "python3 -c 'import fcntl; fcntl.ioctl(0, 0x5412, b\"x\")' < /dev/tty"),
        ],
    )
    .await;
    let status = prints(
        &agent,
        &request("grep -e NoNewPrivs -e Seccomp: -e CapEff /proc/self/status | tr -d '\\t'"),
    )
    .await;
    assert!(status.contains("NoNewPrivs:1"), "{status}");
    assert!(status.contains("Seccomp:2"), "{status}");
    if world.has_users() {
        assert!(status.contains("CapEff:0000000000000000"), "{status}");
        // A program with the bit runs as its caller.
        prints(&agent, &as_root("cp /usr/bin/id /tmp/id; chmod 4755 /tmp/id")).await;
        assert_eq!(prints(&agent, &request("/tmp/id -u")).await, "1000\n");
    }
    agent.check_ready().await.unwrap();
    world.driver.destroy(handle.id, 1).await.unwrap();
}
