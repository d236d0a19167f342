//! What stands at the end of `tieline VERB --help`: words to start from.

pub const SERVER: &str = "\
Examples:
  tieline server --settings /etc/tieline/uf.toml --check
  tieline server --settings /etc/tieline/uf.toml

A server ends in good order on SIGTERM. How it is: /health and /metrics at its admin address.";

pub const MOUNT: &str = "\
Examples:
  tieline mount mds.uf.example.org:/extenci /extenci
  tieline mount mds.uf.example.org,mds.fnal.example.org:7640:/extenci/data /data -o ro
  tieline mount HOST:/extenci /extenci -o mapkey=/etc/tieline/extenci.key,interactive

Options (-o), separated by commas:
  ro                  read only
  wait=SPAN           how long a call waits for a server that does not answer (15 min);
                      interactive: 30 s, hard: 30 days
  offline=stale|error while a server is out of reach for longer: what was known (stale), or an error
  journal=off         wait for the server with every change, not just within a second
  relatime            note in times of access what is read (else noatime; there is no strictatime)
  sec=FLAVOR          the weakest protection that is taken: null, krb5n, krb5a, krb5i, krb5p
  keytab=FILE principal=NAME krb5conf=FILE
                      the machine's keys; without, the tickets of who mounts
  service=host        servers go by host/HOST until the map names them; by default tieline_mds/HOST,
                      and host/HOST where the KDC does not know that
  idmap=names|same|FILE
                      whose uids are whose
  idmapped=USER       allow id-mapped mounts of it; all is done as USER (or UID:GID), not root
  mapkey=KEY          the federation's public key, as digits or a file; else
                      /etc/tieline/FS.key; else the one its server names, with a warning
  cache=DIR sitecache=DIR direct=OST0000=DIR
                      keep chunks here, share them with the site, read an OST's own storage
  readmode=MODE       auto, normal, readbuf, readahead or stream
  inodes=N            files and names that are remembered (300,000; about 1 kB each)
  ino32               show inode numbers of 32 bits, for programs of 32 bits
  hold=off watchdog=SPAN
                      without a holder; when a daemon that stands still is killed
  admin=HOST:PORT     serve /metrics and /health there
  spool=DIR|off spool-size=SIZE
                      where bytes go that were answered for and cannot be stored
                      (/var/lib/tieline/spool, 1 GiB): see `tieline spool`
  log=FILE            where the daemon logs (/var/log/tieline/mount-….log)
  pidfile=FILE        where the daemon writes its process id
  netns=NAME          network namespace from which servers are reached
  suid dev noexec …   as for every file system; nosuid and nodev unless told otherwise

All of them are in docs/operations.md under Mounting.";

pub const PUT: &str = "\
Examples:
  tieline put run7.root /extenci/data/
  tieline put -r results tieline://mds.uf.example.org/extenci/user/me

A file that was put is durable at its servers when the command ends.";

pub const SPOOL: &str = "\
Examples:
  tieline spool list
  tieline spool put --all
  tieline spool put /var/lib/tieline/spool/extenci-mnt/0x1000000007.data --to /mnt/again.root
  tieline spool drop /var/lib/tieline/spool/extenci-mnt/0x1000000007.data --yes

A mount puts bytes there that a program was answered for and that cannot be stored: no OST had room,
a quota or a right was taken away, servers were away until the mount ended. `umount` names the
files. `put` writes the bytes back into the file they are of, whatever it is called now, unless
somebody has written there since, and then takes them out of the spool.";

pub const FIND: &str = "\
Examples:
  tieline find /extenci/data -name '*.root' -type f -size +1G
  tieline find /extenci -pool fnal --json

Tests, all of which must hold:
  -name GLOB          * ? [a-z] [!a-z]
  -type T             f file, d directory, l symlink, p fifo, s socket, b and c devices
  -size [+-]SIZE      more, less or exactly, such as +1M
  -pool POOL          a pool of the layout
  -ost INDEX          bytes on this OST
  -user, -group NAME  or -uid, -gid NUMBER";

pub const SETSTRIPE: &str = "\
Examples:
  tieline setstripe -c -1 -S 4M -p uf /extenci/data    new files go round all OSTs of pool uf
  tieline setstripe -c 2 /extenci/data/new.root        an empty file with a layout of its own
  tieline setstripe -o 0,3 /extenci/data/new.root      the same, on OSTs 0 and 3
  tieline setstripe -L raid0 /extenci/data             small files on OSTs too
  tieline setstripe -N 2 /extenci/data                 two copies of all that is written there
  tieline setstripe -N -p uf -N -p fnal /extenci/data  one at uf, one at fnal
  tieline setstripe -d /extenci/data                   back to what the parent says";

pub const MIGRATE: &str = "\
Examples:
  tieline migrate -c 4 -S 1M /extenci/data/run7.root       spread over four OSTs, 1 MiB each in turn
  tieline migrate -p fnal /extenci/data/run7.root          to OSTs of pool fnal
  tieline find /extenci -ost 3 -type f -print0 | xargs -0 tieline migrate
                                                           off OST0003, once it is deactivated

What is not said stays as the file has it. Readers and writers go on meanwhile. Where the bytes
were is free again when deleted files are (`freed_keep` of the MDT's settings).";

pub const HSM: &str = "\
Examples:
  tieline pool set uf --hsm /etc/tieline/hsm/osm.sh            the files of pool uf can go to tape
  tieline hsm archive /extenci/data/run7.root                  and this one does
  tieline hsm release /extenci/data/run7.root                  its chunks go; tape keeps it
  tieline hsm state -r /extenci/data                           who is where
  tieline hsm restore /extenci/data/run7.root                  back on disk before it is read

Whoever reads a released file waits until it is back. docs/tape.md tells the rest.";

pub const MIRROR: &str = "\
Examples:
  tieline mirror create -N 2 /extenci/data/new.root             an empty file, to have two copies
  tieline mirror extend -N 1 -p fnal /extenci/data/run7.root    one more copy, at fnal
  tieline mirror verify /extenci/data/run7.root                 every copy is read where it lies
  tieline mirror resync /extenci/data/run7.root                 missing copies are made now
  tieline mirror split -p fnal /extenci/data/run7.root          no copy at fnal any more

New files get their copies by `tieline setstripe -N COUNT` on a directory. Copies that are missing
or damaged are made in the background too; `tieline getstripe` shows which are stale.";

pub const CACHE: &str = "\
Examples:
  tieline mount mds.uf.example:/extenci /extenci -o cache=/var/cache/tieline,cache-size=50G
  tieline mount mds.uf.example:/extenci /extenci -o sitecache=/gluster/cache,sitecache-size=2T
  tieline cache status                              the caches of all mounts here
  tieline cache warm /extenci/aux                   bring a tree before the jobs start
  tieline cache pin /extenci/aux                    keep it, whatever else is read
  tieline cache evict --all --cache /gluster/cache  all that is not pinned
  tieline cache scrub /gluster/cache                verify every chunk, discard bad ones

All of a cache's directory may be deleted at any time: what is missing is fetched again.";

pub const POOL: &str = "\
Examples:
  tieline pool new extenci.fast
  tieline pool add extenci.fast extenci-OST[0-3] OST000a
  tieline pool list extenci
  tieline pool list extenci.fast

Numbers of OSTs are hexadecimal, as in Lustre.";

pub const SITE: &str = "\
Examples:
  tieline site invite fnal         the word to send to the new site's administrator
  tieline site uninvite fnal       it was sent to the wrong one
  tieline site list";

pub const JOIN: &str = "\
Examples:
  tieline join --address tieline.fnal.example:7640 --ost /lustre/tieline
  tieline join invitation.txt --address tieline.fnal.example:7640 --ost /pool1 --ost /pool2 \
    --mdt --keytab /etc/tieline/server.keytab

It asks for the invitation, or reads it from a file: among the words of the command other users of
the machine would see it. With --mdt the site keeps the metadata of /FS/SITE at home, and works
while it is cut off.";

pub const MAP: &str = "\
A new federation, at its root MDS:
  tieline map keygen extenci --dir /etc/tieline
  tieline map sign --secret /etc/tieline/extenci.secret --out /var/lib/tieline/uf/map map.toml

The .key goes to every server and client, the .secret stays where it is.";

pub const DEV: &str = "\
Examples:
  tieline dev up --dir /tmp/d --mount /tmp/m
  tieline dev status --dir /tmp/d
  tieline dev kill oss-fnal --restart --dir /tmp/d
  tieline dev mount /tmp/m2 --dir /tmp/d
  tieline dev up --netns --rtt 50ms --rate 1gbit --dir /tmp/d
  tieline dev wan cut --dir /tmp/d
  tieline dev wan run --rtt 50ms --rate 1gbit -- COMMAND
  tieline dev down --dir /tmp/d";

pub const UNDELETE: &str = "\
Examples:
  tieline undelete --list /extenci/data        # who deleted what, when, and for how long it is kept
  tieline undelete /extenci/data/run7.root
  tieline undelete /extenci/data/run7.root@0x2a --to run7.old
  tieline undelete -r /extenci/data            # a directory, and all that was deleted below it";

pub const FSCK: &str = "\
Examples:
  tieline fsck /extenci                        # every MDT of the file system; changes nothing
  tieline fsck --repair --mdt 1
  tieline fsck --read --json /extenci > report # reads every byte of every object too

Exit codes, as fsck(8): 0 nothing wrong, 1 all repaired, 4 something is left, 8 the check failed,
32 it was interrupted.";

pub const CHORES: &str = "\
Examples:
  tieline chores /extenci                      # of every MDT of the file system
  tieline chores --mdt 1 --json

What each does:
  sessions        end sessions of clients that were silent for too long
  nameless-files  delete files that have no name and that nobody has open
  deleted-files   delete files that were kept for undelete long enough
  lost-names      forget names that files lost, for undelete
  freed-chunks    delete chunks of deleted files at the OSTs
  strays          delete objects that no commit ever named
  copies          check and make copies of chunks that are bad or missing
  usage           add up who uses how much, for quotas
  file-count      count the files of before the start, once
  dumps           dump beside the change log when one is due
  check           tieline fsck, when somebody asks for it

A failed one is tried again by itself. The reason stands in its row.";

pub const MDT: &str = "\
Examples:
  tieline mdt dump --mdt 0 | zstd > mdt0.dump.zst
  tieline mdt dump --mdt 0 --since 1048577 > mdt0.later    # from the change log
  tieline mdt verify mdt0.dump /elsewhere/tieline-log
  tieline mdt restore --settings server.toml /elsewhere/tieline-log
  tieline mdt rebuild --from-osts --settings server.toml
  tieline mdt rebuild --from-osts --without OST0003 --settings server.toml   # it is gone for good";

pub const IMPORT: &str = "\
Examples:
  tieline import --in-place /lustre/cms /extenci/cms
  tieline import --in-place /lustre/cms /extenci/cms --owners /etc/tieline/owners --wait
  tieline import --in-place --compare /lustre/cms /extenci/cms      it kept size and time
  tieline import --checksums /extenci/cms

The OST's server must name the tree, or one above it: `adopt = \"/lustre\"` under its [[ost]].
Files stay where they are and are never written. What was adopted before and is unchanged is left
alone; what was changed behind Tieline since is adopted anew. Owners, one per line:
  alice = 1001        a user; names or numbers
  :cms = :physics     a group
  * = nobody          every other user; `:*` every other group";

pub const EXPORT: &str = "\
Examples:
  tieline export /extenci/cms/run7.root /lustre/out/
  tieline export /extenci/cms /lustre/cms-again

An adopted file becomes a hard link to itself where that is possible, else a clone (reflink), and
everything else a copy. Modes, times and attributes are kept, owners if you are root.";

pub const DOOR: &str = "\
Examples:
  tieline door add tieline_door/xrd.uf.example@EXTENCI.ORG \\
    --tickets-for xrootd/xrd.uf.example@EXTENCI.ORG
  tieline door add tieline_door/web.uf.example@EXTENCI.ORG --vouch-for group:cms \\
    --scope read:/data --scope modify:/scratch --life 30min
  tieline door list
  tieline door remove tieline_door/web.uf.example@EXTENCI.ORG
  tieline door serve --settings /etc/tieline/xrd.toml

A door shows what its users sent to its services. Every MDS opens that with the service's key, which
is in its keytab and not the door's: who has it can make tickets of anybody. By its word a door
vouches only for those who are named here.";
pub const ISSUER: &str = "\
Examples:
  curl -s https://iam.example/jwk | tieline issuer add https://iam.example/ --keys - \\
    --audience https://web.uf.example:8443 --user sub:6f1e2c=ann --user group:/cms=cmsuser
  tieline issuer add https://iam.example/ --keys keys.json --base /cms \\
    --audience https://web.uf.example:8443 --user everybody=guest
  tieline issuer list
  tieline issuer remove https://iam.example/

A token (a JWT of the WLCG profile) says what may be done: storage.read:/PATH, storage.create:/PATH,
storage.modify:/PATH, by whole names of the path. Its holder is whom a rule says, may no more than
that user, and has none of his roles. Where an issuer changes its keys, say `add` again.";
pub const FLAVOR: &str = "\
Examples:
  tieline flavor set extenci.srpc.flavor.default=krb5i
  tieline flavor set extenci.srpc.flavor.10.0.0.0/8.cli2ost=krb5p
  tieline flavor unset extenci.srpc.flavor.10.0.0.0/8.cli2ost
  tieline flavor list extenci

Flavors: null, krb5n (proof), krb5a (and integrity of messages), krb5i (of data too), krb5p
(privacy of all). The longest network decides, then the pair; without a rule, krb5p between client
and MDS and krb5i elsewhere. The stricter end's rule holds.";

pub const ID: &str = "\
Examples:
  tieline id add cms --group
  tieline id add ann --number 5001 --groups cms --principal ann@PSC.EDU
  tieline id map '*@UFL.EDU' 'uf-*'
  tieline id map '*/admin@UFL.EDU' 'uf-*'       auth_to_local's [2:$1]
  tieline id map --move ann@PSC.EDU ann         it was another's
  tieline id import --from passwd /etc/passwd --groups /etc/group
  tieline id test bob@UFL.EDU
  tieline id role ann fs-admin
  tieline id machine host/wn17.uf.example@UFL.EDU root

A principal is looked for as it stands, then (ann/admin) under `ann/*@REALM` and `*/admin@REALM`,
then under `*@REALM`, then (in the file system's realm) as a user of its name. While there is no
identity at all, the users of the MDS's machine count. A machine's users prove themselves; `users`
and `all` believe what it says of them, `root` and `all` that its root is root.";

pub const AUTH: &str = "\
Examples:
  tieline auth run -- ./analysis run7.root
  tieline auth run --keytab ~/job.keytab --principal ann@EXTENCI.ORG -- make -j8

The command gets a credential cache of its own, which is renewed while it runs and destroyed when it
ends: tickets must be renewable (kinit -r), or come from a keytab. What happens to the cache of the
caller meanwhile does not concern it.";

pub const EXPLAIN: &str = "\
Examples:
  tieline explain /extenci/cms/run7.root
  tieline explain /extenci/cms --op create
  tieline explain /extenci/cms/run7.root --as bob@UFL.EDU --op write

Each step on the way is judged by the kernel (with the ids that this machine shows) and by the
server (with the identity behind the ticket). A name that is not there is denied, and it is said
whether one may create it. Exit codes: 0 allowed, 1 denied, or nobody could be asked.";

pub const QUOTA: &str = "\
Examples:
  tieline setquota -u ann -b 9G -B 10G -I 1M /extenci   at most 10 GiB, more than 9 GiB for a week
  tieline setquota -p 7 -B 1T --pool uf /extenci        what project 7 may have in pool uf
  tieline setquota -t -u -b 7d -i 1h /extenci           for how long users may pass soft limits
  tieline setquota -U -B 20G /extenci                   for every user without limits of their own
  tieline setquota -D -u ann /extenci                   ann is under that default again
  tieline setquota -u ann 9G 10G 0 1M /extenci          the same, as setquota(8) has it
  tieline quota -u ann -h /extenci
  tieline quota -t -u /extenci                          for how long it is
  tieline repquota -g --json /extenci
  tieline project set /extenci/cms 7                    the tree is of project 7

Sizes: 10G, 512M; a plain number is KiB, as with lfs; 0 is no limit. Limits hold over all MDTs of
the file system, whichever path names it. Root has no limits; what root writes for others counts
for them.";

pub const IMAGE: &str = "\
Examples:
  tieline image build --level client --format raw,qcow2
  tieline image build --keep /var/cache/tieline/images --package root-system-bin
  tieline image enroll wn1 --trust users            of the file system that is mounted here
  tieline image enroll wn1 --fs tieline://mds.uf.example/extenci --kadmin 'kadmin -p ann/admin'

No secret is in an image. A machine gets its keytab at its first boot, by systemd's credentials.";

pub const VM: &str = "\
Examples:
  tieline vm start wn1
  tieline vm start wn1 --run analysis.sh            runs it in the file system, and powers off
  tieline vm list
  tieline vm console wn1
  tieline vm stop wn1

The machine's own disk is the image's, and forgets: what is to stay is in the file system.";
