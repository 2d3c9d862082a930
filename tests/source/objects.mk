# SPDX-License-Identifier: GPL-2.0
obj-y := core.o
obj-$(CONFIG_GARP)	+= garp.o
obj-${CONFIG_OLD}       += old.o \
                           older.o	# both
obj-$(CONFIG_BT_HCIUART)	+= hci_uart.o
hci_uart-y				:= hci_ldisc.o
hci_uart-$(CONFIG_BT_HCIUART_BCSP)	+= hci_bcsp.o
pptp-objs := one.o
obj-$(CONFIG_NET)	+= 802/
