# What a newcomer and a packager need; everything else is `cargo xtask`.

.PHONY: help demo demo-down build test install uninstall
.DEFAULT_GOAL := help

PREFIX ?= /usr/local
DESTDIR ?=
# mount(8) looks for mount.TYPE in /sbin only; a private PREFIX keeps the helper to itself.
SBINDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/sbin,$(PREFIX)/sbin)
CARGO ?= cargo
# Where cargo builds; the tests' Python environment lives there too.
TARGET := $(or $(CARGO_TARGET_DIR),target)
TARGET_ABSOLUTE := $(abspath $(TARGET))

help:
	@echo 'make demo              a whole federation on this machine, with real CMS events in it'
	@echo '                       (MOUNT=/extenci, FILES="a.root b.root" for files of your own,'
	@echo '                       IMAGE=1: a virtual client, too; YES=1)'
	@echo 'make demo-down         remove every trace of it'
	@echo 'make build             the program, for use: $(TARGET)/release/tieline'
	@echo 'make test              every test, with all set-up (YES=1: do not ask)'
	@echo 'make install           build and install below PREFIX=$(PREFIX) (DESTDIR= for packagers)'
	@echo 'make uninstall         remove what install put there'

build:
	$(CARGO) build --release --package tieline

demo:
	@CARGO='$(CARGO)' TARGET='$(TARGET_ABSOLUTE)' ./demo/up.sh

demo-down:
	@TARGET='$(TARGET_ABSOLUTE)' ./demo/down.sh

test:
	@./crates/checks/lab/setup.sh system
	@./crates/checks/lab/setup.sh python '$(TARGET_ABSOLUTE)/test-python'
	TIELINE_PYTHON='$(TARGET_ABSOLUTE)/test-python/bin/python' $(CARGO) xtask test

install: build
	install -D -m 755 '$(TARGET)/release/tieline' '$(DESTDIR)$(PREFIX)/bin/tieline'
	install -d '$(DESTDIR)$(SBINDIR)'
	ln -sf '$(PREFIX)/bin/tieline' '$(DESTDIR)$(SBINDIR)/mount.tieline'
	# mount(8), for a mount that is there, and umount(8) know it by the kernel's name for its type.
	ln -sf '$(PREFIX)/bin/tieline' '$(DESTDIR)$(SBINDIR)/mount.fuse.tieline'
	ln -sf '$(PREFIX)/bin/tieline' '$(DESTDIR)$(SBINDIR)/umount.tieline'
	ln -sf '$(PREFIX)/bin/tieline' '$(DESTDIR)$(SBINDIR)/umount.fuse.tieline'

uninstall:
	rm -f '$(DESTDIR)$(PREFIX)/bin/tieline' '$(DESTDIR)$(SBINDIR)/mount.tieline' \
	  '$(DESTDIR)$(SBINDIR)/mount.fuse.tieline' '$(DESTDIR)$(SBINDIR)/umount.tieline' '$(DESTDIR)$(SBINDIR)/umount.fuse.tieline'
