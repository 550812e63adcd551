package main

func (d *differ) beginAuth()  {}
func (d *differ) stepOfAuth() {}
